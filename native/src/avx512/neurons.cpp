// SPDX-License-Identifier: Apache-2.0
#include "simd/neuron_kernel.hpp"
#include "simd/panel_vec512.hpp"

namespace gossamer::avx512 {

const NeuronKernels neuron_kernels = {neuron_screen<PanelVec512>, neuron_add<PanelVec512>};

}  // namespace gossamer::avx512
