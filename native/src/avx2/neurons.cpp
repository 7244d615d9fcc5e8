// SPDX-License-Identifier: Apache-2.0
#include "simd/neuron_kernel.hpp"
#include "simd/panel_vec256.hpp"

namespace gossamer::avx2 {

const NeuronKernels neuron_kernels = {neuron_screen<PanelVec256>, neuron_add<PanelVec256>};

}  // namespace gossamer::avx2
