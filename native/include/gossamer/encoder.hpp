// SPDX-License-Identifier: Apache-2.0
// A whole encoder on panels: what its kernels see and promise.
//
// Activations stay feature-major from the first layer to the last, tile of 64 tokens after tile, [feature][token].
// So products turn nothing, a norm and a softmax add down the columns without crossing lanes, and attention is
// broadcasts and FMAs like everything else. Lanes of a tile that hold no token are computed and dropped, or not
// computed where there are many.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gossamer/int8.hpp"
#include "gossamer/linear.hpp"
#include "gossamer/panel.hpp"

namespace gossamer {

constexpr int kTileTokens = 64;

// Tile after tile.
struct Panels {
  float* data;
  int64_t features;

  float* tile(int64_t i) const { return data + i * features * kTileTokens; }
};

struct NormView {
  const float *gain, *shift;  // [features]
  int64_t features;
  float epsilon;
};

// One head of one sequence.
struct AttentionCall {
  Panels from;                     // queries, keys and values of all heads
  int64_t query, key, value;       // first features of this head in them
  Panels into;
  int64_t mixed;                   // first feature of this head there
  int64_t head_width;
  int64_t first_token, num_tokens;
  float scale;
  // Added to the score of query i and key j: bias[i - j]; null for nothing. Up to kTileTokens - 1 floats behind the
  // last distance are read.
  const float* bias = nullptr;
  int64_t window = INT64_MAX / 4;  // the farthest key that is seen; `bias` hides the others
};

// Keys that at least one of `count` queries from the one at `query` on sees: [first, last).
struct KeyRange {
  int64_t first, last;
};
static inline KeyRange keys_seen(const AttentionCall& call, int64_t query, int64_t count) {
  const int64_t first = query - call.window, last = query + count + call.window;
  return {first > 0 ? first : 0, last < call.num_tokens ? last : call.num_tokens};
}

// Floats of scratch of one call: the chances of all keys for a block of queries.
static inline size_t attention_scratch_floats(int64_t num_tokens) {
  return static_cast<size_t>(num_tokens) * kTileTokens;
}

// Keys of one int8 call with what vectors write behind them, and its bytes: scales, scores and chances of a block of
// queries, bytes of all three.
static inline int64_t int8_attention_room(int64_t num_tokens) { return (num_tokens + 63) / 32 * 32; }
static inline size_t int8_attention_scratch_bytes(int64_t num_tokens, int64_t head_width) {
  const auto room = static_cast<size_t>(int8_attention_room(num_tokens)), width = static_cast<size_t>(head_width);
  const size_t quads = (width + 3) / 4;
  return 4 * (room * 2 + kTileTokens + room * kTileTokens * 5 / 4 + quads * (kTileTokens + room) + width) + width * room;
}

// All of them allocate and throw nothing; panels are 64-byte aligned, and one tile may be read behind the last
// of `from`.
struct EncoderKernels {
  // out = act(W in + bias) for one row tile; bias [rows]
  void (*linear)(const PanelView&, int64_t part, const float* in, float* out, const float* bias, Activation, int64_t tokens);
  // One column block of it, from its slab; the first one starts the sums. A token's sum has the same bits
  // whatever `tokens` is.
  void (*block)(const PanelView&, int64_t part, int64_t block, const float* slab, float* out, const float* bias,
                int64_t tokens);
  // x += delta, which may be null; out = norm(x). `out` may be x.
  void (*add_norm)(float* x, const float* delta, const NormView&, float* out, int64_t tokens);
  // The first half of the rows of a panel = act(first half) * second half.
  void (*gate)(float* panel, int64_t rows, Activation, int64_t tokens);
  // Turns features e and e + width / 2 of every head of a panel by an angle: `turns` holds its cosines
  // [width / 2][64] and behind them its sines.
  void (*rotate)(float* panel, int64_t heads, int64_t width, const float* turns);
  void (*attend)(const AttentionCall&, float* scratch);
  // Up to 64 tokens [token][feature] to a tile and back. Lanes without a token become zero.
  void (*to_panel)(const float* x, int64_t stride, int64_t tokens, int64_t features, float* panel);
  void (*from_panel)(const float* panel, int64_t tokens, int64_t features, float* y, int64_t stride);
  const PanelShape* shapes;  // of weights in fp32
};

// The int8 products of a tile: quantise it once, then any number of weights of the same activation bits. A weight in
// the form of images takes [column][64 tokens] in natural order, columns 64 bytes apart (conv_net.hpp).
struct EncoderInt8Kernels {
  void (*quantise)(const Int8View&, const float* in, uint8_t* bytes, float* token_scales, int64_t tokens);
  void (*linear)(const Int8View&, int64_t part, const uint8_t* bytes, const float* token_scales, float* out,
                 const float* bias, Activation, int64_t tokens);
  void (*attend)(const AttentionCall&, void* scratch);  // null: fp32 is as fast
};

namespace reference {
extern const EncoderKernels encoder_kernels;
extern const EncoderInt8Kernels encoder_int8_kernels;
}
namespace avx2 {
extern const EncoderKernels encoder_kernels;
extern const EncoderInt8Kernels encoder_int8_kernels;
}
namespace avx512 {
extern const EncoderKernels encoder_kernels;
extern const EncoderInt8Kernels encoder_int8_kernels;  // without VNNI
}
namespace avx512vnni {
extern const EncoderInt8Kernels encoder_int8_kernels;
}

}  // namespace gossamer
