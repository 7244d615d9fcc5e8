// SPDX-License-Identifier: Apache-2.0
#include "simd/decoder_loops.hpp"

namespace gossamer::avx2 {

const DecoderMath decoder_math = Loops<Eight>::math();

}  // namespace gossamer::avx2
