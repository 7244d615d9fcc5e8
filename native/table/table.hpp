// SPDX-License-Identifier: Apache-2.0
// Tables (embeddings): rows are gathered, dequantised and pooled; rows that were looked up are updated.
//
// Every instruction set and every number of threads give the same bits. No product and sum is fused (the files
// of this folder are built without contraction), bags add their rows in the order of their ids, a row adds its
// gradients in the order of their positions, and sums over a row are of 16 lanes: lane i adds columns i, i + 16, ...
#pragma once
#include <cstdint>

#include "gossamer/cpu.hpp"

namespace gossamer::table {

constexpr int64_t kLanes = 16;

// A code of b bits is q + 2^(b-1) in unsigned fields, low bits first (bytes are signed: q itself), and stands for
// scale * q. Rows start at whole bytes.
constexpr int64_t row_bytes(int64_t width, int bits) { return bits == 32 ? 4 * width : (width * bits + 7) / 8; }
constexpr float lowest_code(int bits) { return -static_cast<float>(1 << (bits - 1)); }
constexpr float highest_code(int bits) { return static_cast<float>((1 << (bits - 1)) - 1); }

struct Table {
  const void* data;  // float or codes [num_rows, width]
  int64_t num_rows, width;
  int bits;             // what data holds: 32, 8, 4, 2
  int fake_bits;        // floats are rounded to codes of so many bits on the way; 0: they are not
  // [1], [num_rows] or [num_rows, spans]; null where floats are not rounded, or by the scale of their own row.
  const float* scales;
  bool by_row;
  bool half;  // scales that are found here are numbers of fp16
  const int32_t* map;  // id -> row, or null
  int64_t num_ids;     // rows, or entries of the map
  int64_t span = 0;    // codes by row: so many columns share a scale, a multiple of 16; 0: all of a row

  int64_t scales_of_row() const { return span ? (width + span - 1) / span : 1; }
};

// Bags: bag b has the positions offsets[b] .. offsets[b + 1] - 1, or, without offsets, `bag_size` positions.
struct Bags {
  const int64_t* ids;
  int64_t num_positions;
  const int64_t* offsets;  // [num_bags + 1], or null
  int64_t bag_size, num_bags;
  const float* weights;  // per position, or null
  bool mean;
  int64_t padding;  // an id that does not count; -1: none

  int64_t first(int64_t bag) const { return offsets ? offsets[bag] : bag * bag_size; }
};

// What rounding on the way has seen. `top` is the largest |w| as bits, so that infinities and NaN are above all.
struct Seen {
  uint32_t top;
  int64_t clipped;
};

// One id for each of several tables of one width, and the dots of all pairs of their rows.
struct Pairs {
  const Table* tables;
  const int64_t* paddings;  // by table: an id whose row counts as zeros; -1: none
  int64_t num_tables, width;
  const int64_t* ids;  // [batch, num_tables]
  int64_t batch;
  const float* first;  // [batch, width], one more vector before the rows; null: none
  float* out;          // [batch, width + dots]: `first`, or else the sum of the rows; then the dots

  int64_t num_vectors() const { return num_tables + (first != nullptr); }
  int64_t out_width() const { return width + num_vectors() * (num_vectors() - 1) / 2; }
};

enum class Rule : int { none = 0, sgd = 1, adagrad = 2, adam = 3 };

// The gradient of row rows[s] is the sum over positions order[first[s]] .. of factor * grad[bag of position];
// without an order it is grad[s].
struct Update {
  const float* grad;
  int64_t grad_stride, num_segments;
  const int64_t* rows;
  const uint32_t* order;
  const int64_t* first;         // [num_segments + 1]
  const uint32_t* bag_of;       // by position; null: position / bag_size
  int64_t bag_size;
  const float* weights;         // by position, or null
  const float* bag_factors;     // by bag (a mean), or null
  float* values;                // Rule::none: the gradients, [num_segments, width]
  Rule rule;
  void* data;  // the table: floats, or codes of 8 or 4 bits with a scale for each row
  int bits;
  int64_t width;
  float* scales;
  uint64_t noise;  // of stochastic rounding: seed and step
  float *sums;  // adagrad: [num_rows]
  float *means, *squares;  // adam: [num_rows, width]
  float lr, eps, mean_rate, square_rate;  // 1 - beta1, 1 - beta2; adam's lr holds its corrections
};

// Allocate and throw nothing.
struct Kernels {
  void (*pool)(const Table&, const Bags&, int64_t first_bag, int64_t last_bag, float* out, int64_t out_stride,
               Seen& seen);
  // Scratch: two rows of floats and one of bytes, each of whole 64-byte lines.
  void (*update)(const Update&, int64_t first_segment, int64_t last_segment, float* scratch);
  uint32_t (*top)(const float* values, int64_t count);
  // Codes of rows first .. last - 1 of a table of floats; `scales` is written by row, else read.
  void (*encode)(const Table& floats, int bits, int64_t first, int64_t last, uint8_t* codes, float* scales);
  // Dots of vectors i and j < i, in the order (1, 0), (2, 0), (2, 1), ...; `stride` is a multiple of 16, and what is
  // behind a vector is zero.
  void (*dots)(const float* vectors, int64_t count, int64_t stride, float* out);
};

namespace reference { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

// --- the driver (run.cpp) ---

// out [num_bags, width]. Throws std::bad_alloc.
Seen pool(const Table& table, const Bags& bags, float* out, int64_t out_stride, Isa isa, int num_threads);
// Throws std::bad_alloc.
void pairs(const Pairs& pairs, Isa isa, int num_threads);
uint32_t top(const float* values, int64_t count, Isa isa, int num_threads);
void encode(const Table& floats, int bits, uint8_t* codes, float* scales, Isa isa, int num_threads);
void update(const Update& update, Isa isa, int num_threads);

}  // namespace gossamer::table
