// SPDX-License-Identifier: Apache-2.0
// A whole decoder against one written down in double: every switch, steps of all lengths, 1 against 2 threads, and a
// sequence that is cut short and goes on.
#include <algorithm>
#include <cmath>
#include <memory>

#include "gossamer/decoder.hpp"
#include "gossamer/few_layout.hpp"
#include "gossamer/panel_layout.hpp"
#include "harness.hpp"

namespace gossamer::check {
namespace {

using Matrix = std::vector<double>;  // [token][feature]

struct Layer {
  Weight qkv, out, gate_up, down;
  DecoderLayer settings;  // without packed weights
};

// A model, and the numbers of its tokens.
struct Case {
  DecoderShape shape;
  DecoderRules rules;
  Weight embedding, head;
  DecoderNorm last;
  std::vector<float> positions;
  std::vector<DecoderRotation> rotations;
  std::vector<Layer> layers;
  std::vector<int32_t> ids;
  std::string what;
};

// What families differ in, as far as it is not drawn.
struct Switches {
  bool layer_norm, gated, parallel, interleaved, norms_out, learned_positions;
  int head_norms;  // 0: none, 1: of each head, 2: of all as one
  int64_t pairs, window;
  float cap;
};

std::vector<float> random_floats(int64_t count, float scale, float centre, std::mt19937& random) {
  std::normal_distribution<float> normal(centre, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

DecoderNorm random_norm(int64_t n, bool has_bias, std::mt19937& random) {
  return {random_floats(n, 0.2f, 1.0f, random), has_bias ? random_floats(n, 0.2f, 0.0f, random) : std::vector<float>(),
          1e-5f};
}

Case random_case(const DecoderShape& shape, const Switches& switches, int64_t num_layers, int64_t tokens,
                 double density, std::mt19937& random) {
  Case made{shape, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  DecoderRules& rules = made.rules;
  rules.activation = static_cast<DecoderActivation>(random() % 4);
  rules.layer_norm = switches.layer_norm;
  rules.gated = switches.gated;
  rules.parallel = switches.parallel;
  rules.interleaved = switches.interleaved;
  if (switches.cap != 0.0f) rules.embedding_scale = 1.7f, rules.residual_scale = 0.6f, rules.logits_scale = 0.8f;
  rules.score_cap = rules.logits_cap = switches.cap;
  made.embedding = random_weight(shape.vocab, shape.width, 1.0, random);
  made.head = random_weight(shape.vocab, shape.width, density, random);
  made.last = random_norm(shape.width, switches.layer_norm, random);
  if (switches.learned_positions) made.positions = random_floats(shape.context * shape.width, 1.0f, 0.0f, random);
  for (const float base : {0.4f, 0.05f}) {
    DecoderRotation rotation = {switches.pairs, {}, {}};
    for (int64_t position = 0; position < shape.context; ++position)
      for (int64_t i = 0; i < switches.pairs; ++i) {
        const double angle = double(position) * std::pow(base, double(i));
        rotation.cosines.push_back(static_cast<float>(std::cos(angle)));
        rotation.sines.push_back(static_cast<float>(std::sin(angle)));
      }
    made.rotations.push_back(rotation);
  }
  const int64_t up = switches.gated ? 2 * shape.ffn : shape.ffn, mixed = shape.heads * shape.head_dim;
  for (int64_t i = 0; i < num_layers; ++i) {
    Layer layer{random_weight(shape.qkv_rows(), shape.width, density, random),
                random_weight(shape.width, mixed, density, random),
                random_weight(up, shape.width, density, random),
                random_weight(shape.width, shape.ffn, density, random),
                {}};
    DecoderLayer& settings = layer.settings;
    const auto bias = [&](int64_t rows) { return random() % 2 ? random_floats(rows, 0.5f, 0.0f, random) : std::vector<float>(); };
    settings.qkv.bias = bias(shape.qkv_rows());
    settings.out.bias = bias(shape.width);
    settings.gate_up.bias = bias(up);
    settings.down.bias = bias(shape.width);
    const auto norm = [&](int64_t n) { return random_norm(n, switches.layer_norm, random); };
    // Norms of what is read, of what is given, or both; never none, which lets values grow without end.
    if (!switches.norms_out || random() % 2) settings.attention_in = norm(shape.width), settings.ffn_in = norm(shape.width);
    if (switches.norms_out) settings.attention_out = norm(shape.width), settings.ffn_out = norm(shape.width);
    if (switches.head_norms) {
      const bool as_one = switches.head_norms == 2;
      settings.query = norm(shape.head_dim * (as_one ? shape.heads : 1));
      settings.key = norm(shape.head_dim * (as_one ? shape.kv_heads : 1));
    }
    settings.rotation = switches.pairs ? static_cast<int64_t>(random() % 3) - 1 : -1;
    settings.window = i % 2 ? 0 : switches.window;
    settings.scale = 0.1f + 0.1f * static_cast<float>(i);
    made.layers.push_back(layer);
  }
  for (int64_t t = 0; t < tokens; ++t) made.ids.push_back(static_cast<int32_t>(random() % shape.vocab));
  made.what = std::to_string(shape.width) + " wide, " + std::to_string(shape.heads) + " heads of " +
              std::to_string(shape.head_dim) + " over " + std::to_string(shape.kv_heads) + ", inner " +
              std::to_string(shape.ffn) + ", " + std::to_string(num_layers) + " layers, " + std::to_string(tokens) +
              " tokens, activation " + std::to_string(static_cast<int>(rules.activation)) +
              (switches.layer_norm ? ", layer norm" : "") + (switches.gated ? ", gated" : "") +
              (switches.parallel ? ", parallel" : "") + (switches.interleaved ? ", interleaved" : "") +
              (switches.norms_out ? ", norms out" : "") + (switches.learned_positions ? ", positions" : "") +
              ", head norms " + std::to_string(switches.head_norms) + ", pairs " + std::to_string(switches.pairs) +
              ", window " + std::to_string(switches.window) + ", cap " + std::to_string(switches.cap);
  return made;
}

// The decoder in double. `rounding` moves what an operation gives by up to what fp32 may.
class Oracle {
 public:
  Oracle(const Case& model, Roundings& rounding) : model_(model), rounding_(rounding) {}

  Matrix logits() {
    const auto [width, heads, kv_heads, head_dim, ffn, vocab, context] = model_.shape;
    (void)heads, (void)kv_heads, (void)head_dim, (void)context;
    const auto tokens = static_cast<int64_t>(model_.ids.size());
    Matrix x;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t k = 0; k < width; ++k) {
        double v = rounding_.of(double(model_.embedding.dense[model_.ids[t] * width + k]) * model_.rules.embedding_scale, 1);
        if (!model_.positions.empty()) v = rounding_.of(v + model_.positions[t * width + k], 1);
        x.push_back(v);
      }
    for (const Layer& layer : model_.layers) {
      const DecoderLayer& settings = layer.settings;
      const Matrix mixed = attention(product(norm(x, settings.attention_in, width), layer.qkv, settings.qkv.bias), settings);
      const Matrix parallel = norm(x, settings.ffn_in, width);
      give(x, product(mixed, layer.out, settings.out.bias), settings.attention_out);
      const Matrix inner = product(model_.rules.parallel ? parallel : norm(x, settings.ffn_in, width), layer.gate_up, settings.gate_up.bias);
      Matrix gated;
      const int64_t rows = model_.rules.gated ? 2 * ffn : ffn;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < ffn; ++i) {
          const double v = inner[t * rows + i], factor = model_.rules.gated ? inner[t * rows + ffn + i] : 1.0;
          gated.push_back(rounding_.within(activated(v) * factor, 4e-7 * std::fabs(v * factor)));
        }
      give(x, product(gated, layer.down, settings.down.bias), settings.ffn_out);
    }
    Matrix y = product(norm(x, model_.last, width), model_.head, {});
    for (double& v : y) v = capped(rounding_.of(v * model_.rules.logits_scale, 1), model_.rules.logits_cap);
    (void)vocab;
    return y;
  }

 private:
  const Case& model_;
  Roundings& rounding_;

  Matrix product(const Matrix& x, const Weight& weight, const std::vector<float>& bias) {
    const auto tokens = static_cast<int64_t>(model_.ids.size());
    Matrix y;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t r = 0; r < weight.rows; ++r) {
        double sum = bias.empty() ? 0.0 : bias[r], magnitude = std::fabs(sum);
        int64_t kept = 0;
        for (int64_t k = 0; k < weight.columns; ++k) {
          const double product = double(weight.dense[r * weight.columns + k]) * x[t * weight.columns + k];
          sum += product, magnitude += std::fabs(product), kept += weight.mask[r * weight.columns + k];
        }
        y.push_back(rounding_.within(sum, double(kept + 4) * kRoundoff * magnitude));
      }
    return y;
  }

  Matrix norm(Matrix x, const DecoderNorm& by, int64_t n) {
    if (!by) return x;
    for (size_t i = 0; i < x.size(); i += n) norm(&x[i], by.weight, by.bias, by.eps, n);
    return x;
  }

  // The sum of n numbers is off by n roundings of their magnitudes, what is divided by its root by half of that.
  void norm(double* x, const std::vector<float>& weight, const std::vector<float>& bias, float eps, int64_t n) {
    double mean = 0.0, magnitude = 0.0, squares = 0.0;
    if (model_.rules.layer_norm)
      for (int64_t i = 0; i < n; ++i) mean += x[i] / double(n), magnitude += std::fabs(x[i]) / double(n);
    mean = rounding_.within(mean, double(n + 2) * kRoundoff * magnitude);
    for (int64_t i = 0; i < n; ++i) x[i] = rounding_.of(x[i] - mean, 1), squares += x[i] * x[i];
    const double factor = rounding_.of(1.0 / std::sqrt(squares / double(n) + eps), double(n) / 2 + 4);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = rounding_.of(x[i] * factor * weight[i], 2);
      if (!bias.empty()) x[i] = rounding_.of(x[i] + bias[i], 1);
    }
  }

  void give(Matrix& x, Matrix added, const DecoderNorm& by) {
    added = norm(std::move(added), by, model_.shape.width);
    for (size_t i = 0; i < x.size(); ++i) x[i] = rounding_.of(x[i] + rounding_.of(added[i] * model_.rules.residual_scale, 1), 1);
  }

  double activated(double v) const {
    switch (model_.rules.activation) {
      case DecoderActivation::silu: return v / (1.0 + std::exp(-v));
      case DecoderActivation::gelu_tanh: return 0.5 * v * (1.0 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
      case DecoderActivation::gelu: return 0.5 * v * std::erfc(-v * std::sqrt(0.5));
      case DecoderActivation::relu: return std::max(v, 0.0);
    }
    return v;
  }

  double capped(double v, float limit) {
    return limit == 0.0f ? v : rounding_.of(limit * std::tanh(v / limit), 6);
  }

  Matrix attention(Matrix qkv, const DecoderLayer& layer) {
    const DecoderShape& shape = model_.shape;
    const auto tokens = static_cast<int64_t>(model_.ids.size());
    const int64_t dim = shape.head_dim, rows = shape.qkv_rows(), step = model_.rules.interleaved ? 3 * dim : dim;
    const int64_t keys = model_.rules.interleaved ? dim : shape.heads * dim;
    const int64_t values = model_.rules.interleaved ? 2 * dim : (shape.heads + shape.kv_heads) * dim;
    const auto heads_of = [&](const DecoderNorm& by, int64_t from, int64_t count) {
      if (!by) return;
      const auto n = static_cast<int64_t>(by.weight.size());
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < count * dim; i += n) norm(&qkv[t * rows + from + i], by.weight, by.bias, by.eps, n);
    };
    heads_of(layer.query, 0, shape.heads);
    heads_of(layer.key, keys, shape.kv_heads);
    for (int64_t t = 0; t < tokens && layer.rotation >= 0; ++t) {
      for (int64_t h = 0; h < shape.heads; ++h) turn(&qkv[t * rows + h * step], t, layer.rotation);
      for (int64_t h = 0; h < shape.kv_heads; ++h) turn(&qkv[t * rows + keys + h * step], t, layer.rotation);
    }
    Matrix y(static_cast<size_t>(tokens * shape.heads * dim));
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t i = 0; i < tokens; ++i) {
        const double* query = &qkv[i * rows + h * step];
        const int64_t of = h / (shape.heads / shape.kv_heads), first = layer.window ? std::max<int64_t>(0, i + 1 - layer.window) : 0;
        Matrix chance;
        double top = -INFINITY, sum = 0.0;
        for (int64_t j = first; j <= i; ++j) {
          double score = 0.0, magnitude = 0.0;
          for (int64_t e = 0; e < dim; ++e) {
            const double product = query[e] * layer.scale * qkv[j * rows + keys + of * step + e];
            score += product, magnitude += std::fabs(product);
          }
          score = rounding_.within(score, double(dim + 6) * kRoundoff * magnitude);
          chance.push_back(capped(score, model_.rules.score_cap));
          top = std::max(top, chance.back());
        }
        // exp is right to 2e-7 of a difference that was rounded once.
        for (double& c : chance) sum += c = rounding_.of(std::exp(c - top), 4 + (top - c));
        for (int64_t e = 0; e < dim; ++e) {
          double mixed = 0.0, magnitude = 0.0;
          for (size_t j = 0; j < chance.size(); ++j) {
            const double product = chance[j] / sum * qkv[(first + int64_t(j)) * rows + values + of * step + e];
            mixed += product, magnitude += std::fabs(product);
          }
          y[(i * shape.heads + h) * dim + e] = rounding_.within(mixed, 2.0 * double(chance.size() + 4) * kRoundoff * magnitude);
        }
      }
    return y;
  }

  void turn(double* head, int64_t position, int64_t number) {
    const DecoderRotation& by = model_.rotations[static_cast<size_t>(number)];
    for (int64_t i = 0; i < by.pairs; ++i) {
      double &a = head[i], &b = head[i + by.pairs];
      const double x = a, y = b, c = by.cosines[position * by.pairs + i], s = by.sines[position * by.pairs + i];
      a = rounding_.within(x * c - y * s, 3 * kRoundoff * (std::fabs(x * c) + std::fabs(y * s)));
      b = rounding_.within(y * c + x * s, 3 * kRoundoff * (std::fabs(y * c) + std::fabs(x * s)));
    }
  }
};

// The model for one instruction set, with layouts for many tokens or without.
class Packed {
 public:
  Packed(const Case& model, Isa isa, bool has_many) : isa_(isa), has_many_(has_many) {
    decoder.shape = model.shape;
    decoder.rules = model.rules;
    decoder.math = &decoder_math(isa);
    decoder.final_norm = model.last;
    decoder.positions = model.positions;
    decoder.rotations = model.rotations;
    decoder.embedding = few(model.embedding);
    pack(model.head, decoder.head);
    for (const Layer& layer : model.layers) {
      decoder.layers.push_back(layer.settings);
      pack(layer.qkv, decoder.layers.back().qkv);
      pack(layer.out, decoder.layers.back().out);
      pack(layer.gate_up, decoder.layers.back().gate_up);
      pack(layer.down, decoder.layers.back().down);
    }
  }

  Decoder decoder;

 private:
  const Isa isa_;
  const bool has_many_;
  std::vector<std::unique_ptr<PackedWeight>> owned_;

  const PackedWeight* few(const Weight& weight) {
    owned_.push_back(pack_few_weight(weight.view(), {FewForm::bitmask, ValueType::fp32, 32, 0, 0}, isa_));
    return owned_.back().get();
  }
  void pack(const Weight& weight, DecoderLinear& linear) {
    linear.few = few(weight);
    if (!has_many_) return;
    owned_.push_back(pack_panel_weight(weight.view(), isa_));
    linear.many = owned_.back().get();
  }
};

// Logits of all tokens, in steps as long as `steps` says, over and over.
std::vector<float> stepped(const Decoder& decoder, const std::vector<int32_t>& ids, const std::vector<int64_t>& steps,
                           int64_t cut, int threads) {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<float> logits(ids.size() * static_cast<size_t>(decoder.shape.vocab), NAN);
  DecoderSession session(decoder, KvRules{});
  // What stood behind the cut must not be seen again.
  if (cut < tokens) {
    std::vector<int32_t> others(ids);
    for (int64_t t = cut; t < tokens; ++t) others[t] = static_cast<int32_t>((ids[t] + 1) % decoder.shape.vocab);
    session.step(others.data(), tokens, true, logits.data(), threads);
    session.truncate(cut);
  }
  for (size_t i = 0; session.length() < tokens; ++i) {
    const int64_t first = session.length(), count = std::min(steps[i % steps.size()], tokens - first);
    session.step(ids.data() + first, count, true, logits.data() + first * decoder.shape.vocab, threads);
  }
  return logits;
}

void check_case(const Case& model, std::mt19937& random, Tally& tally) {
  Roundings exact(nullptr);
  const Matrix wanted = Oracle(model, exact).logits();
  const Moved moved = moved_by(wanted, random, false, [&](Roundings& rounding) { return Oracle(model, rounding).logits(); });
  double largest = 0.0;
  for (const double v : wanted) largest = std::max(largest, std::fabs(v));
  // A draw may move little by luck, where there are few numbers.
  const double tolerance = 2.0 * moved.most + 8.0 * kRoundoff * largest;
  const auto tokens = static_cast<int64_t>(model.ids.size());
  const std::vector<int64_t> ways[] = {{64}, {1}, {70, 1, 16, 17, 2}};
  for (const Isa isa : isas_to_check())
    for (const bool has_many : {false, true}) {
      const Packed packed(model, isa, has_many);
      for (const auto& steps : ways) {
        const int64_t cut = steps.size() > 1 ? tokens / 2 : tokens;
        const std::vector<float> y = stepped(packed.decoder, model.ids, steps, cut, 1);
        double worst = 0.0;
        for (size_t i = 0; i < y.size(); ++i) {
          const double error = std::fabs(y[i] - wanted[i]);
          worst = std::max(worst, std::isnan(error) ? INFINITY : error / tolerance);
        }
        const std::string what = model.what + ", steps from " + std::to_string(steps.front()) + (has_many ? ", with panels" : "");
        if (y != stepped(packed.decoder, model.ids, steps, cut, 2))
          tally.fail("decoder", isa, "two threads differ from one: " + what);
        else if (!(worst <= 1.0))
          tally.fail("decoder", isa, "off by " + std::to_string(worst) + " tolerances: " + what);
        else
          tally.pass("decoder", isa, worst);
      }
    }
}

}  // namespace

void check_decoder(Tally& tally) {
  std::mt19937 random(20261118);
  //                          layer norm, gated, parallel, interleaved, norms out, positions, head norms, pairs, window, cap
  const Switches families[] = {{false, true, false, false, false, false, 0, 5, 0, 0.0f},     // Llama
                               {false, true, false, false, false, false, 1, 5, 9, 0.0f},     // Qwen3
                               {false, true, false, false, true, false, 2, 5, 0, 0.0f},      // OLMo 2
                               {false, true, false, false, true, false, 1, 5, 33, 3.0f},     // Gemma
                               {true, false, true, false, false, false, 0, 2, 32, 0.0f},     // parallel, part of a head
                               {true, false, false, false, false, true, 0, 0, 31, 0.0f},     // GPT-2
                               {true, true, true, false, true, true, 1, 4, 1, 20.0f}};
  for (const Switches& switches : families)
    for (const int64_t tokens : {1, 33, 90})
      for (const double density : {0.3, 1.0})
        check_case(random_case({36, 6, 2, 10, 70, 67, 96}, switches, 2, tokens, density, random), random, tally);
  // Rows of query, key and value of a head in turn, as GPT-NeoX has them.
  for (const bool parallel : {false, true})
    check_case(random_case({24, 3, 3, 8, 50, 33, 70}, {true, false, parallel, true, false, false, 0, 2, 0, 0.0f}, 2, 70, 0.5, random), random, tally);
  // Nothing of everything, heads over one vector, one head over all others, and no layer.
  check_case(random_case({1, 1, 1, 1, 1, 1, 4}, families[5], 1, 3, 1.0, random), random, tally);
  check_case(random_case({17, 5, 1, 18, 3, 5, 40}, families[0], 1, 40, 0.6, random), random, tally);
  check_case(random_case({17, 2, 2, 2, 3, 5, 8}, {false, true, false, false, false, false, 0, 1, 3, 0.0f}, 0, 8, 0.6, random), random, tally);
  check_case(random_case({36, 6, 2, 10, 70, 67, 96}, families[0], 2, 20, 0.0, random), random, tally);
}

void fuzz_decoder(std::mt19937& random, Tally& tally) {
  const auto draw = [&](int64_t count) { return static_cast<int64_t>(random() % static_cast<uint64_t>(count)); };
  const auto coin = [&] { return draw(2) == 1; };
  const bool interleaved = draw(4) == 0;
  const int64_t kv_heads = 1 + draw(3), group = interleaved ? 1 : 1 + draw(5), head_dim = 1 + draw(20), context = 1 + draw(100);
  const Switches switches = {coin(), coin(), coin(), interleaved, coin(), coin(), interleaved ? 0 : static_cast<int>(draw(3)),
                             draw(head_dim / 2 + 1), draw(3) ? 0 : 1 + draw(70), draw(3) ? 0.0f : 0.5f * float(1 + draw(40))};
  const DecoderShape shape = {1 + draw(50), kv_heads * group, kv_heads, head_dim, 1 + draw(80), 1 + draw(70), context};
  check_case(random_case(shape, switches, draw(3), 1 + draw(context), double(draw(11)) / 10.0, random), random, tally);
}

}  // namespace gossamer::check
