// SPDX-License-Identifier: Apache-2.0
// The gradient of a row, and what an optimizer makes of it.
#pragma once
#include "table/kernel.hpp"
#include "table/noise.hpp"

namespace gossamer::table {
namespace {

// body(column, count, whole) for the columns of a row, sixteen at a time.
template <class Body>
inline void over_columns(int64_t width, Body body) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) body(c, static_cast<int>(kLanes), Number<1>());
  if (c < width) body(c, static_cast<int>(width - c), Number<0>());
}

template <class V, int Whole>
inline typename V::F load_lanes(const float* from, int count, Number<Whole>) {
  return Whole ? V::load(from) : V::load_part(from, count);
}

template <class V, int Whole>
inline void store_lanes(float* to, typename V::F x, int count, Number<Whole>) {
  if (Whole)
    V::store(to, x);
  else
    V::store_part(to, x, count);
}

// The gradient of a segment's row: where it lies already, or summed up in `room`.
template <class V>
inline const float* gradient_of(const Update& u, int64_t segment, float* room) {
  if (!u.order) return u.grad + segment * u.grad_stride;
  const int64_t from = u.first[segment], to = u.first[segment + 1];
  const auto bag_at = [&](uint32_t p) { return static_cast<int64_t>(u.bag_of ? u.bag_of[p] : p); };
  if (to - from == 1 && !u.weights && !u.bag_factors) return u.grad + bag_at(u.order[from]) * u.grad_stride;
  over_columns(u.width, [&](int64_t c, int count, auto whole) {
    typename V::F sum = V::zero();
    for (int64_t i = from; i < to; ++i) {
      const uint32_t p = u.order[i];
      const int64_t bag = bag_at(p);
      typename V::F x = load_lanes<V>(u.grad + bag * u.grad_stride + c, count, whole);
      if (u.weights) x = V::mul(V::set(u.weights[p]), x);
      if (u.bag_factors) x = V::mul(V::set(u.bag_factors[bag]), x);
      sum = i == from ? x : V::add(sum, x);
    }
    store_lanes<V>(room + c, sum, count, whole);
  });
  return room;
}

// What the gradient is multiplied with: the learning rate, by row for Adagrad, whose sum moves here.
template <class V>
inline float rate_of(const Update& u, int64_t row, const float* grad) {
  if (u.rule != Rule::adagrad) return u.lr;
  typename V::F squares = V::zero();
  over_columns(u.width, [&](int64_t c, int count, auto whole) {
    const typename V::F g = load_lanes<V>(grad + c, count, whole);
    squares = V::add(squares, V::mul(g, g));
  });
  const float sum = u.sums[row] + V::sum(squares) / static_cast<float>(u.width);
  u.sums[row] = sum;
  return u.lr / (__builtin_sqrtf(sum) + u.eps);
}

template <class V>
inline void step_floats(const Update& u, int64_t row, const float* grad, float* weight) {
  const typename V::F rate = V::set(rate_of<V>(u, row, grad));
  if (u.rule != Rule::adam) {
    over_columns(u.width, [&](int64_t c, int count, auto whole) {
      const typename V::F moved = V::mul(rate, load_lanes<V>(grad + c, count, whole));
      store_lanes<V>(weight + c, V::sub(load_lanes<V>(weight + c, count, whole), moved), count, whole);
    });
    return;
  }
  float *means = u.means + row * u.width, *squares = u.squares + row * u.width;
  const typename V::F mean_rate = V::set(u.mean_rate), square_rate = V::set(u.square_rate), eps = V::set(u.eps);
  over_columns(u.width, [&](int64_t c, int count, auto whole) {
    const typename V::F g = load_lanes<V>(grad + c, count, whole);
    typename V::F m = load_lanes<V>(means + c, count, whole), v = load_lanes<V>(squares + c, count, whole);
    m = V::add(m, V::mul(V::sub(g, m), mean_rate));
    v = V::add(v, V::mul(V::sub(V::mul(g, g), v), square_rate));
    store_lanes<V>(means + c, m, count, whole);
    store_lanes<V>(squares + c, v, count, whole);
    const typename V::F moved = V::mul(rate, V::div(m, V::add(V::root(v), eps)));
    store_lanes<V>(weight + c, V::sub(load_lanes<V>(weight + c, count, whole), moved), count, whole);
  });
}

// Codes are trained in place: the row is read, moved and rounded up as often as its fraction says.
template <class V, int Bits>
inline void step_codes(const Update& u, int64_t row, const float* grad, float* weight) {
  uint8_t* const codes = static_cast<uint8_t*>(u.data) + row * row_bytes(u.width, Bits);
  Table table = {};
  table.data = codes, table.num_rows = 1, table.width = u.width, table.bits = Bits, table.scales = u.scales + row;
  CodedRows<V, Bits, Scale::of_table> rows(table);
  const typename CodedRows<V, Bits, Scale::of_table>::Row held = rows.row(0);
  over_columns(u.width, [&](int64_t c, int count, auto whole) {
    store_lanes<V>(weight + c, count == kLanes ? rows.load(held, c) : rows.load_part(held, c, count), count, whole);
  });
  step_floats<V>(u, row, grad, weight);
  const float top = float_of_bits(top_of_values<V>(weight, u.width)), highest = highest_code(Bits);
  float scale = u.scales[row];
  // A scale that moved with every step would round every weight of the row anew.
  if (!(top <= highest * scale) || 2.0f * top < highest * scale) scale = scale_of(top, highest, false);
  u.scales[row] = scale;
  const typename V::F inverse = V::set(1.0f / scale), low = V::set(lowest_code(Bits)), high = V::set(highest);
  const uint32_t noise = row_noise(u.noise, row);
  int8_t whole_codes[kLanes];
  over_columns(u.width, [&](int64_t c, int count, auto whole) {
    const typename V::F x = V::mul(load_lanes<V>(weight + c, count, whole), inverse);
    V::store_bytes(whole_codes, V::clamp(V::floor(V::add(x, V::noise(noise, c))), low, high));
    store_codes(whole_codes, count, Bits, codes + c * Bits / 8);
  });
}

template <class V>
void update_rows(const Update& u, int64_t first, int64_t last, float* scratch) {
  const int64_t row_floats = (u.width + kLanes - 1) / kLanes * kLanes, bytes = row_bytes(u.width, u.bits);
  const int64_t ahead = rows_ahead(bytes) / 2;  // beside the row there is its state
  for (int64_t s = first; s < last; ++s) {
    if (s + ahead < last && u.rule != Rule::none) {
      const int64_t next = u.rows[s + ahead];
      prefetch_row<1>(u.data, next, bytes);
      if (u.sums) __builtin_prefetch(u.sums + next, 1);
      if (u.scales) __builtin_prefetch(u.scales + next, 1);
      if (u.means) prefetch_row<1>(u.means, next, 4 * u.width), prefetch_row<1>(u.squares, next, 4 * u.width);
    }
    const float* const grad = gradient_of<V>(u, s, u.rule == Rule::none ? u.values + s * u.width : scratch);
    const int64_t row = u.rows[s];
    if (u.rule == Rule::none) {
      if (grad != u.values + s * u.width)
        over_columns(u.width, [&](int64_t c, int count, auto whole) {
          store_lanes<V>(u.values + s * u.width + c, load_lanes<V>(grad + c, count, whole), count, whole);
        });
    } else if (u.bits == 32) {
      step_floats<V>(u, row, grad, static_cast<float*>(u.data) + row * u.width);
    } else if (u.bits == 8) {
      step_codes<V, 8>(u, row, grad, scratch + row_floats);
    } else {
      step_codes<V, 4>(u, row, grad, scratch + row_floats);
    }
  }
}

}  // namespace
}  // namespace gossamer::table
