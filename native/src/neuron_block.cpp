// SPDX-License-Identifier: Apache-2.0
#include "gossamer/neuron_block.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gossamer/bf16.hpp"
#include "gossamer/fork.hpp"
#include "run_tasks.hpp"

namespace gossamer {
namespace {

constexpr int64_t kCodeGroup = 64;
constexpr int64_t kParts = 16;  // tasks of a call

void copy_rows(const float* from, int64_t count, bool bf16, BigVector<float>& whole, BigVector<uint16_t>& half) {
  if (!from) return;
  if (bf16) {
    half.resize(count);
    std::transform(from, from + count, half.begin(), to_bf16);
  } else {
    whole.assign(from, from + count);
  }
}

std::vector<float> copy_bias(const float* bias, int64_t count) {
  return bias ? std::vector<float>(bias, bias + count) : std::vector<float>();
}

template <class Vector>
auto data_or_null(const Vector& vector) {
  return vector.empty() ? nullptr : vector.data();
}

}  // namespace

const NeuronKernels& neuron_kernels(Isa isa) {
#ifdef GOSSAMER_X86
  return pick(isa, reference::neuron_kernels, avx2::neuron_kernels, avx512::neuron_kernels);
#else
  (void)isa;
  return reference::neuron_kernels;
#endif
}

NeuronBlock::NeuronBlock(const NeuronWeights& w, Isa isa) : kernels_(neuron_kernels(isa)) {
  const int64_t count = w.neurons * w.features, stride = (w.features + kCodeGroup - 1) / kCodeGroup * kCodeGroup;
  copy_rows(w.gate, count, w.bf16, gate_, gate_bf16_);
  copy_rows(w.up, count, w.bf16, up_, up_bf16_);
  copy_rows(w.down, count, w.bf16, down_, down_bf16_);
  gate_bias_ = copy_bias(w.gate_bias, w.neurons);
  up_bias_ = copy_bias(w.up_bias, w.neurons);
  codes_.assign(w.neurons * stride, 0);
  code_scales_.assign(w.neurons, 0.0f);
  row_norms_.assign(w.neurons, 0.0f);
  for (int64_t i = 0; i < w.neurons; ++i) {
    const float* row = w.gate + i * w.features;
    float top = 0.0f;
    double squares = 0.0;
    for (int64_t k = 0; k < w.features; ++k) {
      top = std::max(top, std::fabs(row[k]));
      squares += double(row[k]) * row[k];
    }
    if (top == 0.0f) continue;
    row_norms_[i] = static_cast<float>(std::sqrt(squares));
    code_scales_[i] = top / 127.0f;
    for (int64_t k = 0; k < w.features; ++k)
      codes_[i * stride + k] = static_cast<int8_t>(std::lrint(double(row[k]) * 127.0 / double(top)));
  }
  view_ = {w.neurons, w.features, data_or_null(gate_), data_or_null(up_), data_or_null(down_), data_or_null(gate_bf16_),
           data_or_null(up_bf16_), data_or_null(down_bf16_), data_or_null(gate_bias_), data_or_null(up_bias_),
           codes_.data(), stride, code_scales_.data(), row_norms_.data(), w.shift, w.power};
}

size_t NeuronBlock::bytes() const {
  return (gate_.size() + up_.size() + down_.size() + gate_bias_.size() + up_bias_.size() + 2 * code_scales_.size()) * 4 +
         (gate_bf16_.size() + up_bf16_.size() + down_bf16_.size()) * 2 + codes_.size();
}

// Parts have a sum each, whatever the number of threads: results do not depend on it.
template <class Task>
int64_t NeuronBlock::add_parts(int64_t most, float* y, int num_threads, const Task& task) const {
  const int64_t features = view_.features, parts = std::min(kParts, most);
  std::vector<int64_t> active(parts, 0);
  std::vector<float> sums(parts * features, 0.0f);
  run_tasks(parts, usable_threads(num_threads), [&](int64_t part) {
    active[part] = task(part, parts, sums.data() + part * features);
    return true;
  });
  std::fill_n(y, features, 0.0f);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t k = 0; k < features; ++k) y[k] += sums[part * features + k];
  return std::accumulate(active.begin(), active.end(), int64_t{0});
}

int64_t NeuronBlock::run_known(const float* x, const int32_t* known, int64_t count, float* y, int num_threads) const {
  return add_parts(count, y, num_threads, [&](int64_t part, int64_t parts, float* sum) {
    const int64_t first = count * part / parts, last = count * (part + 1) / parts;
    return kernels_.add(view_, x, known + first, last - first, sum);
  });
}

int64_t NeuronBlock::run(const float* x, float* y, int num_threads) const {
  const int64_t features = view_.features, neurons = view_.neurons;
  std::vector<int16_t> coded(view_.code_stride, 0);
  float top = 0.0f;
  double squares = 0.0;
  bool finite = true;
  for (int64_t k = 0; k < features; ++k) {
    top = std::max(top, std::fabs(x[k]));
    squares += double(x[k]) * x[k];
    finite = finite && std::isfinite(x[k]);
  }
  // Below, the reciprocal would overflow; such an input counts as zero for the codes, not for candidates.
  const float inverse = finite && top > 0x1p-100f ? static_cast<float>(input_limit(features)) / top : 0.0f;
  for (int64_t k = 0; k < features && inverse > 0.0f; ++k) coded[k] = static_cast<int16_t>(std::lrint(x[k] * inverse));
  // Without numbers to screen by, every neuron is a candidate.
  const CodedInput input = {coded.data(), inverse > 0.0f ? 1.0f / inverse : 0.0f,
                            finite ? static_cast<float>(std::sqrt(squares)) : NAN};
  std::vector<int32_t> candidates(neurons);
  return add_parts(neurons, y, num_threads, [&](int64_t part, int64_t parts, float* sum) {
    const int64_t first = neurons * part / parts, last = neurons * (part + 1) / parts;
    const int64_t count = kernels_.screen(view_, input, first, last, candidates.data() + first);
    return kernels_.add(view_, x, candidates.data() + first, count, sum);
  });
}

}  // namespace gossamer
