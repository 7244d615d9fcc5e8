// SPDX-License-Identifier: Apache-2.0
// The integer kernels for few tokens against the reference: sums of 64 columns are exact, so only the
// rounding of adding them up may differ. The reference is held against float64 from Python.
#include <cmath>
#include <limits>

#include "gossamer/few_int_layout.hpp"
#include "gossamer/fp16.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

constexpr float kCanary = -12345.75f;

std::vector<float> run(const PackedWeight& packed, const std::vector<float>& x, const Call& call,
                       const std::vector<float>& bias, int threads) {
  const int64_t x_stride = packed.columns + call.x_pad, y_stride = packed.rows + call.y_pad;
  std::vector<float> y(static_cast<size_t>(call.tokens * y_stride), kCanary);
  packed.run({x.data(), call.tokens, x_stride, y.data(), y_stride, call.has_bias ? bias.data() : nullptr,
              call.activation},
             threads);
  return y;
}

bool is_close(float a, float b, double magnitude) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::fabs(double(a) - b) <= 2e-6 * magnitude;
}

using Pack = std::function<std::unique_ptr<PackedWeight>(FewIntKernel)>;

// `pack` with the kernels of all sets against `pack` with the reference.
void check_packing(const std::string& family, int64_t rows, int64_t columns, const Pack& pack,
                   std::mt19937& random, Tally& tally) {
  Call call = random_call(random);
  call.tokens = static_cast<int64_t>(random() % 8 ? random() % 20 : 60 + random() % 12);  // one pass and more
  std::normal_distribution<float> normal(0.0f, call.scale);
  const int64_t x_stride = columns + call.x_pad;
  // NaN in the gaps: one that gets in spoils its row.
  std::vector<float> x(static_cast<size_t>(call.tokens * x_stride), std::numeric_limits<float>::quiet_NaN());
  for (int64_t t = 0; t < call.tokens; ++t)
    for (int64_t k = 0; k < columns; ++k) x[t * x_stride + k] = normal(random);
  if (call.tokens > 1 && columns) x[x_stride + columns / 2] = std::numeric_limits<float>::infinity();
  std::vector<float> bias(static_cast<size_t>(rows));
  for (float& b : bias) b = normal(random);
  const auto wanted = run(*pack(reference::few_int_kernel), x, call, bias, 1);
  std::vector<std::pair<Isa, FewIntKernel>> kernels;
  for (const Isa isa : isas_to_check()) kernels.push_back({isa, few_int_kernel(isa)});
#if defined(GOSSAMER_X86) && !defined(GOSSAMER_EMULATED_AVX512)
  // Where there is a faster one, too.
  if (has_extension("avx512vnni")) kernels.push_back({Isa::avx512, avx512vnni::few_int_kernel});
#endif
  for (const auto& [isa, kernel] : kernels) {
    const auto packed = pack(kernel);
    const auto y = run(*packed, x, call, bias, 1), again = run(*packed, x, call, bias, 2);
    const double magnitude = 20.0 * call.scale * (std::sqrt(double(columns)) + 1.0) + 1e-30;
    std::string fault;
    for (size_t i = 0; i < y.size() && fault.empty(); ++i) {
      const bool is_gap = static_cast<int64_t>(i) % (rows + call.y_pad) >= rows;
      if (is_gap ? y[i] != kCanary : !is_close(y[i], wanted[i], magnitude))
        fault = "y[" + std::to_string(i) + "] is " + std::to_string(y[i]) + ", expected " + std::to_string(wanted[i]);
      if (!(y[i] == again[i] || (std::isnan(y[i]) && std::isnan(again[i])))) fault = "two threads give other bits";
    }
    fault.empty() ? tally.pass(family, isa, 0.0) : tally.fail(family, isa, fault);
  }
}

void check_weight(const Weight& weight, bool is_int4, std::mt19937& random, Tally& tally) {
  const auto pack = [&](FewIntKernel kernel) { return pack_few_int_weight(weight.view(), is_int4, 32, kernel); };
  check_packing(is_int4 ? "few_int int4" : "few_int int8", weight.rows, weight.columns, pack, random, tally);
}

// Codes, scales and offsets that could be those of weights around 1; rows are held against their own formula.
void check_offsets(int64_t rows, int64_t columns, int64_t group, std::mt19937& random, Tally& tally) {
  OffsetWeight weight = {nullptr, nullptr, nullptr, rows, columns, group};
  std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
  std::vector<uint16_t> scales(static_cast<size_t>(rows * weight.groups())), offsets(scales.size());
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 16);
  for (uint16_t& scale : scales) scale = static_cast<uint16_t>(0x2c00 + random() % 0x400);            // 1/16 to 1/8
  for (uint16_t& offset : offsets) offset = static_cast<uint16_t>(0xb800 + random() % 0x400);         // -1/2 to -1
  if (!scales.empty()) scales[random() % scales.size()] = 0, offsets[random() % scales.size()] = 1;  // 2^-24
  weight.codes = codes.data(), weight.scales = scales.data(), weight.offsets = offsets.data();
  const std::string family = "few_int offsets";
  const auto pack = [&](FewIntKernel kernel) { return pack_offset_weight(weight, kernel); };
  check_packing(family, rows, columns, pack, random, tally);
  std::vector<float> row(static_cast<size_t>(columns));
  const auto packed = pack(reference::few_int_kernel);
  for (int64_t r = 0; r < rows; ++r) {
    packed->read_row(r, row.data());
    for (int64_t k = 0; k < columns; ++k) {
      const size_t at = static_cast<size_t>(r * weight.groups() + k / group);
      const float wanted = from_fp16(scales[at]) * float(codes[static_cast<size_t>(r * columns + k)]) + from_fp16(offsets[at]);
      if (row[static_cast<size_t>(k)] != wanted) return tally.fail(family, Isa::reference, "row " + std::to_string(r) + " reads wrong");
    }
  }
}

}  // namespace

void check_few_int(Tally& tally) {
  std::mt19937 random(20240611);
  for (const int64_t rows : {0, 1, 16, 33})
    for (const int64_t columns : {0, 1, 63, 64, 65, 200, 1100})
      for (const double density : {0.0, 0.02, 0.5, 1.0})
        for (const bool is_int4 : {false, true})
          check_weight(random_weight(rows, columns, density, random), is_int4, random, tally);
  for (const int64_t rows : {0, 1, 16, 33})
    for (const int64_t columns : {0, 1, 31, 33, 63, 64, 65, 200, 576, 1100})
      for (const int64_t group : {32, 64, 128}) check_offsets(rows, columns, group, random, tally);
}

void fuzz_few_int(std::mt19937& random, Tally& tally) {
  const Draw draw = random_draw(random);
  if (random() % 3 == 0) return check_offsets(draw.rows, draw.columns, random() % 2 ? 32 : 64, random, tally);
  check_weight(random_weight(draw.rows, draw.columns, draw.density, random), random() % 2, random, tally);
}

}  // namespace gossamer::check
