// SPDX-License-Identifier: Apache-2.0
#include "simd/encoder_int8.hpp"
#include "simd/encoder_int8_attention.hpp"
#include "simd/int8_vec_vnni.hpp"

namespace gossamer::avx512vnni {

const EncoderInt8Kernels encoder_int8_kernels = {encoder_quantise<Int8Vec512Vnni>,
                                                 encoder_int8_linear<Int8Vec512Vnni, 1>, int8_attend};

}  // namespace gossamer::avx512vnni
