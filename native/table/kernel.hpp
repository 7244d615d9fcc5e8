// SPDX-License-Identifier: Apache-2.0
// Gather + dequantise + pool, and the update of rows, over a type of sixteen lanes (vec256.hpp, vec512.hpp).
#pragma once
#include "table/code_bytes.hpp"
#include "table/prefetch.hpp"
#include "table/scale.hpp"
#include "table/table.hpp"

namespace gossamer::table {
namespace {  // each instruction set has its own copy

// Floats as they are.
template <class V>
struct FloatRows {
  using Row = const float*;
  static constexpr bool kInBursts = false;
  explicit FloatRows(const Table& t) : table(t) {}
  Row row(int64_t id) { return static_cast<const float*>(table.data) + id * table.width; }
  typename V::F load(Row row, int64_t column) const { return V::load(row + column); }
  typename V::F load_part(Row row, int64_t column, int count) const { return V::load_part(row + column, count); }
  void tell(Seen&) const {}

  const Table& table;
};

// Floats, rounded to codes on the way.
template <class V>
struct RoundedRows {
  static constexpr bool kInBursts = true;
  struct Row {
    const float* at;
    typename V::F scale, inverse;
  };
  explicit RoundedRows(const Table& t)
      : table(t), low(V::set(lowest_code(t.fake_bits))), high(V::set(highest_code(t.fake_bits))),
        low_edge(V::set(lowest_code(t.fake_bits) - 0.5f)), high_edge(V::set(highest_code(t.fake_bits) + 0.5f)) {
    const float scale = t.scales ? t.scales[0] : 1.0f;
    of_table = {nullptr, V::set(scale), V::set(1.0f / scale)};
  }
  Row row(int64_t id) {
    Row found = of_table;
    found.at = static_cast<const float*>(table.data) + id * table.width;
    if (table.by_row) {
      const uint32_t top_of_row = top_of(found.at, table.width);
      seen_top = top_of_row > seen_top ? top_of_row : seen_top;
      const float scale = scale_of(float_of_bits(top_of_row), highest_code(table.fake_bits), table.half);
      found.scale = V::set(scale);
      found.inverse = V::set(1.0f / scale);
    }
    return found;
  }
  typename V::F load(const Row& row, int64_t column) { return rounded(V::load(row.at + column), row); }
  typename V::F load_part(const Row& row, int64_t column, int count) {
    return rounded(V::load_part(row.at + column, count), row);
  }
  void tell(Seen& seen) const {
    const uint32_t found = V::largest(top);
    seen.top = found > seen_top ? found : seen_top;
    seen.clipped = clipped;
  }
  static uint32_t top_of(const float* values, int64_t count) {
    typename V::I found = V::no_bits();
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) found = V::larger(found, V::load(values + i));
    if (i < count) found = V::larger(found, V::load_part(values + i, static_cast<int>(count - i)));
    return V::largest(found);
  }

 private:
  typename V::F rounded(typename V::F x, const Row& row) {
    const typename V::F in_codes = V::mul(x, row.inverse);
    if (!table.by_row) {
      top = V::larger(top, x);
      clipped += V::count_outside(in_codes, low_edge, high_edge);
    }
    return V::mul(row.scale, V::round(V::clamp(in_codes, low, high)));
  }

  const Table& table;
  Row of_table;
  typename V::F low, high, low_edge, high_edge;
  typename V::I top = V::no_bits();
  uint32_t seen_top = 0;
  int64_t clipped = 0;
};

// Codes.
enum class Scale { of_table, of_row, of_span };

template <class V, int Bits, Scale Shared>
struct CodedRows {
  static constexpr bool kInBursts = false;
  struct Row {
    const uint8_t* at;
    typename V::Levels levels;
    const float* scales;  // of its spans
  };
  explicit CodedRows(const Table& t)
      : table(t), bytes(row_bytes(t.width, Bits)), of_table(V::template levels<Bits>(t.num_rows ? t.scales[0] : 1.0f)) {}
  Row row(int64_t id) {
    const uint8_t* at = static_cast<const uint8_t*>(table.data) + id * bytes;
    if constexpr (Shared == Scale::of_span) return {at, of_table, table.scales + id * spans};
    return {at, Shared == Scale::of_row ? V::template levels<Bits>(table.scales[id]) : of_table, nullptr};
  }
  typename V::F load(const Row& row, int64_t column) const {
    return V::template decode<Bits>(row.at + column * Bits / 8, levels_at(row, column));
  }
  typename V::F load_part(const Row& row, int64_t column, int count) const {
    uint8_t held[kLanes] = {};  // nothing is read behind the row
    for (int64_t i = 0; i < row_bytes(count, Bits); ++i) held[i] = row.at[column * Bits / 8 + i];
    return V::template decode<Bits>(held, levels_at(row, column));
  }
  void tell(Seen&) const {}
  // Sixteen columns never belong to two spans.
  typename V::Levels levels_at(const Row& row, int64_t column) const {
    if constexpr (Shared == Scale::of_span) return V::template levels<Bits>(row.scales[column / table.span]);
    return row.levels;
  }

  const Table& table;
  int64_t bytes, spans = table.scales_of_row();
  typename V::Levels of_table;
};

// Columns column .. column + 16 N - 1 of one bag (or, with a count, a part of 16).
template <class V, class Rows, int N, bool Part>
void pool_columns(Rows& rows, const Table& table, const Bags& bags, Ahead<Rows::kInBursts>& ahead, int64_t from,
                  int64_t to, int64_t column, int count, float divisor, float* out) {
  using F = typename V::F;
  F sums[N];
  for (F& sum : sums) sum = V::zero();
  for (int64_t p = from; p < to; ++p) {
    if (column == 0) ahead.come_to(table, bags, p);
    const int64_t id = bags.ids[p];
    if (id == bags.padding) continue;
    const typename Rows::Row row = rows.row(table.map ? table.map[id] : id);
    const F weight = V::set(bags.weights ? bags.weights[p] : 1.0f);
    for (int n = 0; n < N; ++n) {
      F x = Part ? rows.load_part(row, column, count) : rows.load(row, column + n * kLanes);
      if (bags.weights) x = V::mul(weight, x);
      sums[n] = V::add(sums[n], x);
    }
  }
  for (int n = 0; n < N; ++n) {
    if (divisor > 0.0f) sums[n] = V::div(sums[n], V::set(divisor));
    if (Part)
      V::store_part(out + column, sums[n], count);
    else
      V::store(out + column + n * kLanes, sums[n]);
  }
}

template <class V, class Rows>
void pool_rows(const Table& table, const Bags& bags, int64_t first_bag, int64_t last_bag, float* out, int64_t stride,
               Seen& seen) {
  if (first_bag == last_bag) return;
  Rows rows(table);
  Ahead<Rows::kInBursts> ahead(table, bags.first(first_bag), bags.first(last_bag));
  for (int64_t bag = first_bag; bag < last_bag; ++bag) {
    const int64_t from = bags.first(bag), to = bags.first(bag + 1), width = table.width;
    const float divisor = bags.mean ? static_cast<float>(counted(bags, from, to)) : 0.0f;
    float* const row = out + bag * stride;
    int64_t column = 0;
    const auto run = [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      pool_columns<V, Rows, N, false>(rows, table, bags, ahead, from, to, column, 0, divisor, row);
      column += N * kLanes;
    };
    while (width - column >= 8 * kLanes) run(Number<8>());
    if (width - column >= 4 * kLanes) run(Number<4>());
    if (width - column >= 2 * kLanes) run(Number<2>());
    if (width - column >= kLanes) run(Number<1>());
    if (width > column) {
      const int rest = static_cast<int>(width - column);
      pool_columns<V, Rows, 1, true>(rows, table, bags, ahead, from, to, column, rest, divisor, row);
    }
  }
  rows.tell(seen);
}

template <class V, int Bits>
void pool_codes(const Table& t, const Bags& bags, int64_t first, int64_t last, float* out, int64_t stride, Seen& seen) {
  if (t.span) return pool_rows<V, CodedRows<V, Bits, Scale::of_span>>(t, bags, first, last, out, stride, seen);
  if (t.by_row) return pool_rows<V, CodedRows<V, Bits, Scale::of_row>>(t, bags, first, last, out, stride, seen);
  pool_rows<V, CodedRows<V, Bits, Scale::of_table>>(t, bags, first, last, out, stride, seen);
}

template <class V>
void pool_bags(const Table& t, const Bags& bags, int64_t first, int64_t last, float* out, int64_t stride, Seen& seen) {
  if (t.bits == 8) return pool_codes<V, 8>(t, bags, first, last, out, stride, seen);
  if (t.bits == 4) return pool_codes<V, 4>(t, bags, first, last, out, stride, seen);
  if (t.bits == 2) return pool_codes<V, 2>(t, bags, first, last, out, stride, seen);
  if (t.fake_bits) return pool_rows<V, RoundedRows<V>>(t, bags, first, last, out, stride, seen);
  pool_rows<V, FloatRows<V>>(t, bags, first, last, out, stride, seen);
}

template <class V>
uint32_t top_of_values(const float* values, int64_t count) {
  return RoundedRows<V>::top_of(values, count);
}

template <class V>
void encode_rows(const Table& t, int bits, int64_t first, int64_t last, uint8_t* codes, float* scales) {
  const typename V::F low = V::set(lowest_code(bits)), high = V::set(highest_code(bits));
  const int64_t bytes = row_bytes(t.width, bits);
  int8_t whole[kLanes];
  for (int64_t row = first; row < last; ++row) {
    const float* from = static_cast<const float*>(t.data) + row * t.width;
    if (t.by_row) scales[row] = scale_of(float_of_bits(top_of_values<V>(from, t.width)), highest_code(bits), t.half);
    const typename V::F inverse = V::set(1.0f / scales[t.by_row ? row : 0]);
    for (int64_t c = 0; c < t.width; c += kLanes) {
      const int count = static_cast<int>(t.width - c < kLanes ? t.width - c : kLanes);
      const typename V::F x = count == kLanes ? V::load(from + c) : V::load_part(from + c, count);
      V::store_bytes(whole, V::round(V::clamp(V::mul(x, inverse), low, high)));
      store_codes(whole, count, bits, codes + row * bytes + c * bits / 8);
    }
  }
}

}  // namespace
}  // namespace gossamer::table
