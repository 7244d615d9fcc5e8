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

constexpr int64_t kParts = 16;  // tasks of a call

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
  const bool is_coded = w.rows == NeuronType::int8;
  const int64_t padded = (w.features + kCodeGroup - 1) / kCodeGroup * kCodeGroup, stride = is_coded ? padded : w.features;
  // The codes are all that int8 blocks keep of the gate.
  if (!is_coded) gate_.fill(w.gate, w, stride);
  up_.fill(w.up, w, stride);
  down_.fill(w.down, w, stride);
  gate_bias_ = copy_bias(w.gate_bias, w.neurons);
  up_bias_ = copy_bias(w.up_bias, w.neurons);
  high_.assign(w.neurons * padded / 4, 0);
  low_.assign(high_.size(), 0);
  for (std::vector<float>* each : {&code_scales_, &row_norms_, &high_means_, &high_errors_, &low_errors_})
    each->assign(w.neurons, 0.0f);
  for (int64_t i = 0; i < w.neurons; ++i) encode(w, i, padded);
  view_ = {w.neurons,           w.features,          stride,        gate_.view(),      up_.view(),
           down_.view(),        data_or_null(gate_bias_), data_or_null(up_bias_), high_.data(), low_.data(),
           padded / 4,          code_scales_.data(), row_norms_.data(), high_means_.data(), high_errors_.data(),
           low_errors_.data(),  w.shift,             w.threshold,   w.power};
}

void NeuronBlock::encode(const NeuronWeights& w, int64_t neuron, int64_t padded) {
  const float* row = w.gate + neuron * w.features;
  uint16_t *high = high_.data() + neuron * padded / 4, *low = low_.data() + neuron * padded / 4;
  float top = 0.0f;
  for (int64_t k = 0; k < w.features; ++k) top = std::max(top, std::fabs(row[k]));
  const double scale = double(top) / kTopCode;
  double squares = 0.0, rest = 0.0, rest_squares = 0.0, error = 0.0;
  for (int64_t k = 0; k < padded; ++k) {
    const double value = k < w.features ? row[k] : 0.0;
    const int code = top > 0.0f ? static_cast<int>(std::lrint(value / scale)) : 0, upper = (code + 8) >> 4;
    const int64_t word = k / kCodeGroup * 32 + k % 32, place = k % kCodeGroup / 32 * 4;
    high[word] |= static_cast<uint16_t>((upper + 8) << place);
    low[word] |= static_cast<uint16_t>((code - 16 * upper + 8) << place);
    if (k >= w.features) continue;
    // What the high bits leave out, of the row that is computed with in the end.
    const double meant = w.rows == NeuronType::int8 ? code * scale : value, left = meant - 16 * upper * scale;
    squares += meant * meant;
    rest += left;
    rest_squares += left * left;
    error += (meant - code * scale) * (meant - code * scale);
  }
  const double count = double(std::max<int64_t>(w.features, 1));
  code_scales_[neuron] = static_cast<float>(scale);
  row_norms_[neuron] = static_cast<float>(std::sqrt(squares));
  high_means_[neuron] = static_cast<float>(rest / count);
  high_errors_[neuron] = static_cast<float>(std::sqrt(std::max(0.0, rest_squares - rest * rest / count)));
  low_errors_[neuron] = static_cast<float>(std::sqrt(error));
}

void NeuronMatrix::fill(const float* from, const NeuronWeights& w, int64_t stride) {
  if (!from) return;
  const int64_t count = w.neurons * w.features;
  if (w.rows == NeuronType::fp32) return fp32.assign(from, from + count);
  if (w.rows == NeuronType::bf16) {
    bf16.resize(count);
    std::transform(from, from + count, bf16.begin(), to_bf16);
    return;
  }
  int8.assign(w.neurons * stride, 0);
  scales.assign(w.neurons, 0.0f);
  for (int64_t i = 0; i < w.neurons; ++i, from += w.features) {
    float top = 0.0f;
    for (int64_t k = 0; k < w.features; ++k) top = std::max(top, std::fabs(from[k]));
    if (top == 0.0f) continue;
    scales[i] = top / 127.0f;
    for (int64_t k = 0; k < w.features; ++k)
      int8[i * stride + k] = static_cast<int8_t>(std::lrint(double(from[k]) * 127.0 / double(top)));
  }
}

NeuronRows NeuronMatrix::view() const {
  return {data_or_null(fp32), data_or_null(bf16), data_or_null(int8), data_or_null(scales)};
}

size_t NeuronMatrix::bytes() const { return (fp32.size() + scales.size()) * 4 + bf16.size() * 2 + int8.size(); }

size_t NeuronBlock::bytes() const {
  return gate_.bytes() + up_.bytes() + down_.bytes() + (gate_bias_.size() + up_bias_.size() + 5 * code_scales_.size()) * 4 +
         (high_.size() + low_.size()) * 2;
}

// x in 16 bits, in `coded`.
CodedInput NeuronBlock::code(const float* x, std::vector<int16_t>& coded) const {
  const int64_t features = view_.features;
  coded.assign(view_.code_words * 4, 0);
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
  int32_t sum = 0;
  for (int64_t k = 0; k < features && inverse > 0.0f; ++k) sum += coded[k] = static_cast<int16_t>(std::lrint(x[k] * inverse));
  // Without numbers to screen by, every neuron is a candidate, and gives NaN.
  const float scale = finite ? (inverse > 0.0f ? 1.0f / inverse : 0.0f) : NAN;
  return {coded.data(), scale, finite ? static_cast<float>(std::sqrt(squares)) : NAN, sum};
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
  std::vector<int16_t> coded;
  const CodedInput input = code(x, coded);
  std::vector<int32_t> active(count);
  return add_parts(count, y, num_threads, [&](int64_t part, int64_t parts, float* sum) {
    const int64_t first = count * part / parts, last = count * (part + 1) / parts;
    return kernels_.add(view_, x, input, known + first, nullptr, last - first, active.data() + first, sum);
  });
}

int64_t NeuronBlock::run(const float* x, float* y, int num_threads, uint8_t* seen) const {
  const int64_t neurons = view_.neurons;
  std::vector<int16_t> coded;
  const CodedInput input = code(x, coded);
  std::vector<int32_t> candidates(neurons);
  std::vector<float> gates(neurons);
  return add_parts(neurons, y, num_threads, [&](int64_t part, int64_t parts, float* sum) {
    const int64_t first = neurons * part / parts, last = neurons * (part + 1) / parts;
    int32_t* own = candidates.data() + first;
    const int64_t count = kernels_.screen(view_, input, first, last, own, gates.data() + first);
    const int64_t active = kernels_.add(view_, x, input, own, gates.data() + first, count, own, sum);
    for (int64_t i = 0; seen && i < active; ++i) seen[own[i]] = 1;
    return active;
  });
}

}  // namespace gossamer
