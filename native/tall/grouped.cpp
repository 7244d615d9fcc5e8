// SPDX-License-Identifier: Apache-2.0
#include "grouped.hpp"

#include <algorithm>
#include <vector>

#include "gossamer/bf16.hpp"
#include "gossamer/fork.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

const GroupedKernels& kernels_of(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::grouped_kernels, avx2::grouped_kernels, avx512::grouped_kernels);
#else
  (void)isa;
  return reference::grouped_kernels;
#endif
}

constexpr int64_t kPartRows = 192;  // a multiple of all heights of tiles
constexpr int64_t kPanel = 64;      // columns of the widest tile
// Gradients of so many bytes leave no cache before they are read again.
constexpr int64_t kStreamed = int64_t{16} << 20;
constexpr uintptr_t kVector = 64;  // bytes of the widest

// Rows of an expert's weight that are a task, and its tokens.
struct Part {
  int64_t expert, first, last;
};

std::vector<Part> parts_of(const Grouped& c, int64_t rows) {
  std::vector<Part> parts;
  for (int64_t e = 0; e < c.experts; ++e)
    if (c.starts[e] < c.starts[e + 1])
      for (int64_t row = 0; row < c.outputs; row += rows) parts.push_back({e, row, std::min(row + rows, c.outputs)});
  return parts;
}

template <class Task>
void run_parts(const std::vector<Part>& parts, int num_threads, Task&& task) {
  run_tasks(static_cast<int64_t>(parts.size()), usable_threads(num_threads), [&](int64_t i) {
    task(parts[static_cast<size_t>(i)]);
    return true;
  });
}

// Rows first..last - 1 of an expert's weight, as they lie or as floats in `room`.
const float* rows_of(const Grouped& c, const Part& part, std::vector<float>& room) {
  const int64_t begin = (part.expert * c.outputs + part.first) * c.inner, count = (part.last - part.first) * c.inner;
  if (!c.halves) return c.weight + begin;
  room.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) room[static_cast<size_t>(i)] = from_bf16(c.halves[begin + i]);
  return room.data();
}

int64_t tokens_of(const Grouped& c, int64_t expert) { return c.starts[expert + 1] - c.starts[expert]; }

}  // namespace

void grouped_product(const Grouped& c, const float* x, const float* bias, float* y, Isa isa, int num_threads) {
  const GroupedKernels& kernels = kernels_of(isa);
  run_parts(parts_of(c, kPartRows), num_threads, [&](const Part& part) {
    const int64_t tokens = tokens_of(c, part.expert), rows = part.last - part.first;
    std::vector<float> room;
    const float* const w = rows_of(c, part, room);
    float* const own = y + c.starts[part.expert] * c.outputs + part.first;
    kernels.product(w, rows, c.halves ? 0 : c.outputs - part.last, x + c.starts[part.expert] * c.inner, tokens, c.inner,
                    own, c.outputs);
    const float* const added = bias ? bias + part.expert * c.outputs + part.first : nullptr;
    for (int64_t t = 0; added && t < tokens; ++t)
      for (int64_t row = 0; row < rows; ++row) own[t * c.outputs + row] += added[row];
  });
}

void grouped_input_gradient(const Grouped& c, const float* g, float* dx, Isa isa, int num_threads) {
  if (c.outputs == 0) std::fill_n(dx, c.starts[c.experts] * c.inner, 0.0f);
  const GroupedKernels& kernels = kernels_of(isa);
  const std::vector<Part> experts = parts_of(c, std::max<int64_t>(c.outputs, 1));
  // Few experts: threads share the columns of each.
  const int threads = usable_threads(num_threads);
  const auto count = static_cast<int64_t>(experts.size()), panels = (c.inner + kPanel - 1) / kPanel;
  const int64_t shares = count < 2 * threads ? std::max<int64_t>(std::min<int64_t>(threads, panels), 1) : 1;
  run_tasks(count * shares, threads, [&](int64_t i) {
    const Part& part = experts[static_cast<size_t>(i / shares)];
    const int64_t first = c.starts[part.expert], share = i % shares;
    std::vector<float> room;
    kernels.back(rows_of(c, part, room), g + first * c.outputs, tokens_of(c, part.expert), c.outputs, c.inner,
                 panels * share / shares * kPanel, std::min(panels * (share + 1) / shares * kPanel, c.inner),
                 dx + first * c.inner);
    return true;
  });
}

void grouped_weight_gradient(const Grouped& c, const float* g, const float* x, float* dw, float* sums, Isa isa,
                             int num_threads) {
  const GroupedKernels& kernels = kernels_of(isa);
  const std::vector<Part> parts = parts_of(c, kPartRows);
  const auto written = static_cast<int64_t>(parts.size()) * std::min(kPartRows, c.outputs) * c.inner * 4;
  const bool streams =
      written >= kStreamed && reinterpret_cast<uintptr_t>(dw) % kVector == 0 && c.inner * 4 % kVector == 0;
  run_parts(parts, num_threads, [&](const Part& part) {
    const int64_t first = c.starts[part.expert];
    const TallOuter call = {g + first * c.outputs,
                            x + first * c.inner,
                            dw + part.expert * c.outputs * c.inner,
                            sums ? sums + part.expert * c.outputs : nullptr,
                            tokens_of(c, part.expert),
                            c.outputs,
                            c.inner};
    kernels.outer(call, part.first, part.last, streams);
  });
}

}  // namespace gossamer
