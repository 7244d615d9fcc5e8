// SPDX-License-Identifier: Apache-2.0
#include "gossamer/train.hpp"

#include <vector>

#include "gossamer/fork.hpp"
#include "gossamer/fresh_panel.hpp"
#include "gossamer/scratch.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

// The widest tile that most of the tokens left fill.
int tile_width(const int* widths, int64_t left) {
  while (widths[1] && left * 8 <= widths[0] * 5) ++widths;
  return widths[0];
}

}  // namespace

const SampledKernels& sampled_kernels([[maybe_unused]] Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::sampled_kernels, avx2::sampled_kernels, avx512::sampled_kernels);
#else
  return reference::sampled_kernels;
#endif
}

void train_linear(const KeptWeight& weight, const LinearCall& call, Isa isa, int num_threads) {
  const PanelKernels& kernels = panel_kernels(isa);
  run_panel(fresh_panel(weight, kernels.shapes, num_threads).layout, call, kernels, num_threads);
}

void train_grad_input(const KeptWeight& weight, const LinearCall& call, Isa isa, int num_threads) {
  const PanelKernels& kernels = panel_kernels(isa);
  run_panel(fresh_transposed_panel(weight, kernels.shapes, num_threads).layout, call, kernels, num_threads);
}

void train_grad_values(const KeptWeight& weight, const SampledCall& call, float* grad_values, Isa isa,
                       int num_threads) {
  const SampledKernels& kernels = sampled_kernels(isa);
  const KeptWeight positions = {nullptr, weight.mask_bits, weight.rows, weight.columns};
  num_threads = usable_threads(num_threads);
  const FreshPanel panel = fresh_panel(positions, kernels.shapes, num_threads, num_threads);
  const PanelView view = panel.layout.view();
  std::vector<float> sums(panel.layout.offsets.size(), 0.0f);
  // Threads share the rows, so that every sum runs over the tokens in one order; each part turns the
  // tokens of X again, which costs under 5 %.
  const int64_t num_parts = num_threads < view.num_tiles ? num_threads : view.num_tiles;
  run_tasks(num_parts, num_threads, [&](int64_t part) {
    const size_t bytes = sampled_scratch_floats(view, kernels.widths[0]) * sizeof(float);
    float* scratch = static_cast<float*>(thread_scratch(bytes));
    if (!scratch) return false;
    const int64_t first_tile = part * view.num_tiles / num_parts;
    const int64_t last_tile = (part + 1) * view.num_tiles / num_parts;
    for (int64_t first = 0; first < call.tokens;) {
      const int64_t left = call.tokens - first;
      const int width = tile_width(kernels.widths, left);
      const int num = static_cast<int>(left < width ? left : width);
      kernels.run(view, call, {first, num, width}, first_tile, last_tile, scratch, sums.data());
      first += num;
    }
    return true;
  });
  gather_slots(panel, sums.data(), grad_values, num_threads);
}

}  // namespace gossamer
