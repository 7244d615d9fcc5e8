// SPDX-License-Identifier: Apache-2.0
// The plain form: what the kernels compute, one number after the other.
#include <cmath>

#include "table/code_bytes.hpp"
#include "table/noise.hpp"
#include "table/scale.hpp"
#include "table/table.hpp"

namespace gossamer::table::reference {
namespace {

uint32_t larger(uint32_t top, float value) {
  const uint32_t bits = bits_of_float(value) & 0x7fffffffu;
  return bits > top ? bits : top;
}

uint32_t top_of(const float* values, int64_t count) {
  uint32_t top = 0;
  for (int64_t i = 0; i < count; ++i) top = larger(top, values[i]);
  return top;
}

float clamped(float x, int bits) {
  const float raised = x > lowest_code(bits) ? x : lowest_code(bits);
  return raised < highest_code(bits) ? raised : highest_code(bits);
}

float decoded(const uint8_t* row, int64_t column, int bits) {
  if (bits == 8) return static_cast<float>(static_cast<int8_t>(row[column]));
  const int field = row[column * bits / 8] >> (column * bits % 8) & ((1 << bits) - 1);
  return static_cast<float>(field - (1 << (bits - 1)));
}

// One number of a table as a lookup sees it.
float looked_up(const Table& t, int64_t row, int64_t column, float row_scale, Seen& seen) {
  if (t.bits != 32) {
    const uint8_t* codes = static_cast<const uint8_t*>(t.data) + row * row_bytes(t.width, t.bits);
    const int64_t at = t.span ? row * t.scales_of_row() + column / t.span : t.by_row ? row : 0;
    return t.scales[at] * decoded(codes, column, t.bits);
  }
  const float value = static_cast<const float*>(t.data)[row * t.width + column];
  if (!t.fake_bits) return value;
  seen.top = larger(seen.top, value);
  const float scale = t.by_row ? row_scale : t.scales[0], x = value * (1.0f / scale);
  if (!t.by_row && !(x >= lowest_code(t.fake_bits) - 0.5f && x < highest_code(t.fake_bits) + 0.5f)) ++seen.clipped;
  return scale * (std::nearbyint(clamped(x, t.fake_bits)) + 0.0f);
}

void pool(const Table& t, const Bags& bags, int64_t first_bag, int64_t last_bag, float* out, int64_t stride,
          Seen& seen) {
  for (int64_t bag = first_bag; bag < last_bag; ++bag) {
    float* const sums = out + bag * stride;
    for (int64_t c = 0; c < t.width; ++c) sums[c] = 0.0f;
    const int64_t from = bags.first(bag), to = bags.first(bag + 1);
    for (int64_t p = from; p < to; ++p) {
      if (bags.ids[p] == bags.padding) continue;
      const int64_t row = t.map ? t.map[bags.ids[p]] : bags.ids[p];
      float scale = 0.0f;
      if (t.fake_bits && t.by_row) {
        const float top = float_of_bits(top_of(static_cast<const float*>(t.data) + row * t.width, t.width));
        scale = scale_of(top, highest_code(t.fake_bits), t.half);
      }
      for (int64_t c = 0; c < t.width; ++c) {
        const float x = looked_up(t, row, c, scale, seen);
        sums[c] += bags.weights ? bags.weights[p] * x : x;
      }
    }
    const int64_t count = bags.mean ? counted(bags, from, to) : 0;
    for (int64_t c = 0; count > 0 && c < t.width; ++c) sums[c] /= static_cast<float>(count);
  }
}

void encode(const Table& t, int bits, int64_t first, int64_t last, uint8_t* codes, float* scales) {
  int8_t whole[kLanes];
  for (int64_t row = first; row < last; ++row) {
    const float* from = static_cast<const float*>(t.data) + row * t.width;
    if (t.by_row) scales[row] = scale_of(float_of_bits(top_of(from, t.width)), highest_code(bits), t.half);
    const float inverse = 1.0f / scales[t.by_row ? row : 0];
    for (int64_t c = 0; c < t.width; c += kLanes) {
      const int count = static_cast<int>(t.width - c < kLanes ? t.width - c : kLanes);
      for (int i = 0; i < count; ++i)
        whole[i] = static_cast<int8_t>(std::nearbyint(clamped(from[c + i] * inverse, bits)));
      store_codes(whole, count, bits, codes + row * row_bytes(t.width, bits) + c * bits / 8);
    }
  }
}

const float* gradient_of(const Update& u, int64_t segment, float* room) {
  if (!u.order) return u.grad + segment * u.grad_stride;
  const int64_t from = u.first[segment];
  for (int64_t i = from; i < u.first[segment + 1]; ++i) {
    const uint32_t p = u.order[i];
    const int64_t bag = u.bag_of ? u.bag_of[p] : p;
    for (int64_t c = 0; c < u.width; ++c) {
      float x = u.grad[bag * u.grad_stride + c];
      if (u.weights) x = u.weights[p] * x;
      if (u.bag_factors) x = u.bag_factors[bag] * x;
      room[c] = i == from ? x : room[c] + x;
    }
  }
  return room;
}

float dot(const float* a, const float* b, int64_t width) {
  float lanes[kLanes] = {};
  for (int64_t c = 0; c < width; ++c) lanes[c % kLanes] += a[c] * b[c];
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

float mean_square(const float* grad, int64_t width) { return dot(grad, grad, width) / static_cast<float>(width); }

void dots(const float* vectors, int64_t count, int64_t stride, float* out) {
  for (int64_t i = 1; i < count; ++i)
    for (int64_t j = 0; j < i; ++j) *out++ = dot(vectors + i * stride, vectors + j * stride, stride);
}

void step_floats(const Update& u, int64_t row, const float* grad, float* weight) {
  float rate = u.lr;
  if (u.rule == Rule::adagrad) {
    u.sums[row] += mean_square(grad, u.width);
    rate = u.lr / (std::sqrt(u.sums[row]) + u.eps);
  }
  for (int64_t c = 0; c < u.width; ++c) {
    float direction = grad[c];
    if (u.rule == Rule::adam) {
      float &mean = u.means[row * u.width + c], &square = u.squares[row * u.width + c];
      mean += (grad[c] - mean) * u.mean_rate;
      square += (grad[c] * grad[c] - square) * u.square_rate;
      direction = mean / (std::sqrt(square) + u.eps);
    }
    weight[c] -= rate * direction;
  }
}

void step_codes(const Update& u, int64_t row, const float* grad, float* weight) {
  uint8_t* const codes = static_cast<uint8_t*>(u.data) + row * row_bytes(u.width, u.bits);
  for (int64_t c = 0; c < u.width; ++c) weight[c] = u.scales[row] * decoded(codes, c, u.bits);
  step_floats(u, row, grad, weight);
  const float top = float_of_bits(top_of(weight, u.width)), highest = highest_code(u.bits);
  float& scale = u.scales[row];
  if (!(top <= highest * scale) || 2.0f * top < highest * scale) scale = scale_of(top, highest, false);
  const float inverse = 1.0f / scale;
  const uint32_t noise = row_noise(u.noise, row);
  int8_t whole[kLanes];
  for (int64_t c = 0; c < u.width; c += kLanes) {
    const int count = static_cast<int>(u.width - c < kLanes ? u.width - c : kLanes);
    for (int i = 0; i < count; ++i)
      whole[i] = static_cast<int8_t>(clamped(std::floor(weight[c + i] * inverse + column_noise(noise, c + i)), u.bits));
    store_codes(whole, count, u.bits, codes + c * u.bits / 8);
  }
}

void update(const Update& u, int64_t first, int64_t last, float* scratch) {
  const int64_t row_floats = (u.width + kLanes - 1) / kLanes * kLanes;
  for (int64_t s = first; s < last; ++s) {
    const float* const grad = gradient_of(u, s, scratch);
    const int64_t row = u.rows[s];
    if (u.rule == Rule::none)
      for (int64_t c = 0; c < u.width; ++c) u.values[s * u.width + c] = grad[c];
    else if (u.bits == 32)
      step_floats(u, row, grad, static_cast<float*>(u.data) + row * u.width);
    else
      step_codes(u, row, grad, scratch + row_floats);
  }
}

}  // namespace

const Kernels kernels = {pool, update, top_of, encode, dots};

}  // namespace gossamer::table::reference
