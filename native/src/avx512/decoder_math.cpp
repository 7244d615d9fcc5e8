// SPDX-License-Identifier: Apache-2.0
#include "simd/decoder_loops.hpp"

namespace gossamer::avx512 {

const DecoderMath decoder_math = Loops<Sixteen>::math();

}  // namespace gossamer::avx512
