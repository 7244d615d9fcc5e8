// SPDX-License-Identifier: Apache-2.0
// The same tiles on sixteen plain floats, for processors without vectors and to compare with.
#include <cstring>
#include <utility>

#include "attention_kernel.hpp"

namespace gossamer::reference {
namespace {

struct AttentionVec {
  static constexpr int kLanes = 16;
  static constexpr int kStrip = 1;
  static constexpr int kRows = 6;
  struct Type {
    float lane[kLanes];
  };
  using Mask = uint32_t;

  template <class Make>
  static Type make(Make make) {
    Type v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = make(i);
    return v;
  }
  static Type zero() { return all(0.0f); }
  static Type all(float v) {
    return make([&](int) { return v; });
  }
  static Type load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static void store(float* p, const Type& v) { std::memcpy(p, v.lane, sizeof v.lane); }
  static Type add(const Type& a, const Type& b) {
    return make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Type sub(const Type& a, const Type& b) {
    return make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Type mul(const Type& a, const Type& b) {
    return make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Type divide(const Type& a, const Type& b) {
    return make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Type fma(const Type& a, const Type& b, const Type& c) {
    return make([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static Type larger(const Type& a, const Type& b) {
    return make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Mask bits(uint64_t row, int vector) { return static_cast<Mask>(row >> (kLanes * vector) & 0xffff); }
  static Type where(Mask m, const Type& a, const Type& b) {
    return make([&](int i) { return m >> i & 1 ? a.lane[i] : b.lane[i]; });
  }
  static Type only(Mask m, const Type& v) { return where(m, v, zero()); }
  static Mask not_below(const Type& v, const Type& limit) {
    Mask m = 0;
    for (int i = 0; i < kLanes; ++i) m |= static_cast<Mask>(!(v.lane[i] < limit.lane[i])) << i;
    return m;
  }
  static Type two_to(const Type& shifted) {
    return make([&](int i) {
      uint32_t n;
      std::memcpy(&n, shifted.lane + i, sizeof n);
      n = (n + 127u) << 23;
      float v;
      std::memcpy(&v, &n, sizeof v);
      return v;
    });
  }
  static Mask kept(const uint32_t* lanes, uint32_t row, uint32_t limit) {
    Mask m = 0;
    for (int i = 0; i < kLanes; ++i) m |= static_cast<Mask>(DropBits::mix(lanes[i] ^ row) > limit) << i;
    return m;
  }
  static void transpose(Type (&v)[kLanes]) {
    for (int i = 0; i < kLanes; ++i)
      for (int j = 0; j < i; ++j) std::swap(v[i].lane[j], v[j].lane[i]);
  }
};

}  // namespace

const AttentionKernels attention_kernels = {forward_tile<AttentionVec>, backward_tile<AttentionVec>,
                                            turn<AttentionVec>, turn_back<AttentionVec>};

}  // namespace gossamer::reference
