// SPDX-License-Identifier: Apache-2.0
// What the kernels of graphs compute, said plainly. One edge after the other, in float.
#include <cmath>
#include <cstring>

#include "graph.hpp"

namespace gossamer::reference {
namespace {

// body(edge, its place, its row, its column), rows in order and edges within them.
template <class Body>
void each_edge(const EdgeRows& edges, int64_t first, int64_t last, Body body) {
  for (int64_t k = first; k < last; ++k)
    for (int64_t e = edges.starts[k]; e < edges.starts[k + 1]; ++e)
      body(e, edges.place(e), edges.row(k), int64_t{edges.columns[e]});
}

template <class Body>
void each_row(const EdgeRows& edges, int64_t first, int64_t last, Body body) {
  for (int64_t k = first; k < last; ++k) body(k, edges.row(k));
}

float leaky(float z, float slope) { return z > 0.0f ? z : z * slope; }

void spmm(const SpmmCall& c, int64_t first, int64_t last, int64_t from, int64_t to) {
  const int64_t per_head = c.width / c.heads;
  each_row(c.edges, first, last, [&](int64_t, int64_t row) {
    for (int64_t f = from; f < to; ++f) c.y[row * c.width + f] = c.bias ? c.bias[f] : 0.0f;
  });
  each_edge(c.edges, first, last, [&](int64_t, int64_t place, int64_t row, int64_t column) {
    for (int64_t f = from; f < to; ++f) {
      const float value = c.values ? c.values[place * c.heads + f / per_head] : 1.0f;
      c.y[row * c.width + f] += value * c.x[column * c.width + f];
    }
  });
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}

// To the nearest, halves to even; NaN stays one.
uint16_t to_bf16(float v) {
  if (v != v) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof v);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void bf16_spmm(const Bf16SpmmCall& c, int64_t first, int64_t last, int64_t from, int64_t to) {
  const int64_t per_head = c.width / c.heads;
  each_row(c.edges, first, last, [&](int64_t k, int64_t row) {
    for (int64_t f = from; f < to; ++f) {
      float sum = c.bias ? c.bias[f] : 0.0f;
      for (int64_t e = c.edges.starts[k]; e < c.edges.starts[k + 1]; ++e) {
        const float value = c.values ? c.values[c.edges.place(e) * c.heads + f / per_head] : 1.0f;
        sum += value * from_bf16(c.x[c.edges.columns[e] * c.width + f]);
      }
      c.y[row * c.width + f] = to_bf16(sum);
    }
  });
}

void max(const MaxCall& c, int64_t first, int64_t last) {
  each_row(c.edges, first, last, [&](int64_t k, int64_t row) {
    const int64_t start = c.edges.starts[k], stop = c.edges.starts[k + 1];
    for (int64_t f = 0; f < c.width; ++f) {
      float most = start < stop ? -INFINITY : 0.0f, ties = 0.0f;
      for (int64_t e = start; e < stop; ++e) {
        const float x = c.x[c.edges.columns[e] * c.width + f];
        if (x > most || x != x) most = x;
      }
      for (int64_t e = start; e < stop; ++e) ties += c.x[c.edges.columns[e] * c.width + f] == most;
      c.y[row * c.width + f] = most;
      if (c.ties) c.ties[row * c.width + f] = ties;
    }
  });
}

void max_backward(const MaxBackwardCall& c, int64_t first, int64_t last) {
  each_row(c.edges, first, last, [&](int64_t, int64_t row) {
    for (int64_t f = 0; f < c.width; ++f) c.dx[row * c.width + f] = 0.0f;
  });
  each_edge(c.edges, first, last, [&](int64_t, int64_t, int64_t row, int64_t column) {
    for (int64_t f = 0; f < c.width; ++f)
      if (c.x[row * c.width + f] == c.y[column * c.width + f])
        c.dx[row * c.width + f] += c.grad[column * c.width + f];
  });
}

void sddmm(const SddmmCall& c, int64_t first, int64_t last) {
  const int64_t per_head = c.width / c.heads;
  each_edge(c.edges, first, last, [&](int64_t, int64_t place, int64_t row, int64_t column) {
    for (int64_t h = 0; h < c.heads; ++h) {
      float sum = 0.0f;
      for (int64_t f = h * per_head; f < (h + 1) * per_head; ++f)
        sum += c.grad[row * c.width + f] * c.x[column * c.width + f];
      c.out[place * c.heads + h] = sum;
    }
  });
}

void softmax(const SoftmaxCall& c, int64_t first, int64_t last) {
  if (c.target)
    each_edge(c.edges, first, last, [&](int64_t e, int64_t, int64_t row, int64_t column) {
      for (int64_t h = 0; h < c.heads; ++h)
        c.weights[e * c.heads + h] = leaky(c.target[row * c.heads + h] + c.source[column * c.heads + h], c.slope);
    });
  each_row(c.edges, first, last, [&](int64_t k, int64_t) {
    const int64_t start = c.edges.starts[k], stop = c.edges.starts[k + 1];
    for (int64_t h = 0; h < c.heads; ++h) {
      float most = -INFINITY, total = 0.0f;
      for (int64_t e = start; e < stop; ++e) most = std::fmax(most, c.weights[e * c.heads + h]);
      for (int64_t e = start; e < stop; ++e)
        total += c.weights[e * c.heads + h] = std::exp(c.weights[e * c.heads + h] - most);
      for (int64_t e = start; e < stop; ++e) c.weights[e * c.heads + h] /= total;
    }
  });
}

void softmax_backward(const SoftmaxBackwardCall& c, int64_t first, int64_t last) {
  const SoftmaxCall& f = c.forward;
  each_row(f.edges, first, last, [&](int64_t k, int64_t row) {
    const int64_t start = f.edges.starts[k], stop = f.edges.starts[k + 1];
    for (int64_t h = 0; h < f.heads; ++h) {
      float dot = 0.0f, sum = 0.0f;
      for (int64_t e = start; e < stop; ++e) dot += f.weights[e * f.heads + h] * c.grad[e * f.heads + h];
      for (int64_t e = start; e < stop; ++e) {
        float& grad = c.grad[e * f.heads + h];
        grad = f.weights[e * f.heads + h] * (grad - dot);
        if (f.target && !(f.target[row * f.heads + h] + f.source[f.edges.columns[e] * f.heads + h] > 0.0f))
          grad *= f.slope;
        sum += grad;
      }
      if (c.sums) c.sums[row * f.heads + h] = sum;
    }
  });
}

void edge_sum(const EdgeSumCall& c, int64_t first, int64_t last) {
  each_row(c.edges, first, last, [&](int64_t, int64_t row) {
    for (int64_t h = 0; h < c.heads; ++h) c.sums[row * c.heads + h] = 0.0f;
  });
  each_edge(c.edges, first, last, [&](int64_t, int64_t place, int64_t row, int64_t) {
    for (int64_t h = 0; h < c.heads; ++h) c.sums[row * c.heads + h] += c.values[place * c.heads + h];
  });
}

void pair_logits(const PairLogitsCall& c, int64_t first, int64_t last) {
  const int64_t per_head = c.width / c.heads;
  each_edge(c.edges, first, last, [&](int64_t, int64_t place, int64_t row, int64_t column) {
    for (int64_t h = 0; h < c.heads; ++h) {
      float sum = 0.0f;
      for (int64_t f = h * per_head; f < (h + 1) * per_head; ++f)
        sum += c.att[f] * leaky(c.target[row * c.width + f] + c.source[column * c.width + f], c.slope);
      c.logits[place * c.heads + h] = sum;
    }
  });
}

void pair_backward(const PairBackwardCall& c, int64_t first, int64_t last) {
  const int64_t per_head = c.width / c.heads;
  each_row(c.edges, first, last, [&](int64_t, int64_t row) {
    for (int64_t f = 0; f < c.width; ++f) c.dx[row * c.width + f] = 0.0f;
  });
  each_edge(c.edges, first, last, [&](int64_t, int64_t place, int64_t row, int64_t column) {
    for (int64_t f = 0; f < c.width; ++f) {
      const float z = c.own[row * c.width + f] + c.other[column * c.width + f];
      const float grad = c.grad[place * c.heads + f / per_head];
      c.dx[row * c.width + f] += grad * c.att[f] * (z > 0.0f ? 1.0f : c.slope);
      if (c.datt) c.datt[f] += grad * leaky(z, c.slope);
    }
  });
}

void squeeze(const SqueezeCall& c, int64_t first, int64_t last) {
  for (int64_t k = first; k < last; ++k) {
    int64_t at = c.columns ? c.starts[k] : 0;
    for (int64_t f = 0; f < c.width; ++f) {
      const float v = c.x[k * c.width + f];
      if (v == 0.0f) continue;
      if (c.columns) c.columns[at] = static_cast<int32_t>(f), c.values[at] = v;
      ++at;
    }
    if (!c.columns) c.starts[k + 1] = at;
  }
}

}  // namespace

const GraphKernels graph_kernels = {
    int64_t{1} << 40, spmm,        max,           max_backward, sddmm, softmax,
    softmax_backward, edge_sum, pair_logits, pair_backward, squeeze, bf16_spmm,
};

}  // namespace gossamer::reference
