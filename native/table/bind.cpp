// SPDX-License-Identifier: Apache-2.0
// Tables and batches cross as addresses. Whoever makes a view keeps the memory alive; sizes, offsets, maps and ids
// are checked here before anything is read through them.
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../bind/common.hpp"
#include "../bind/families.hpp"
#include "table/groups.hpp"
#include "table/pages.hpp"
#include "table/table.hpp"

namespace gossamer::bind {
namespace {

using table::Bags;
using table::Groups;
using table::Rule;
using table::Table;

constexpr int64_t kMost = int64_t{1} << 40;  // rows and columns: sizes cannot overflow
constexpr int64_t kMostRows = std::numeric_limits<uint32_t>::max();

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

Table make_table(uintptr_t data, int64_t num_rows, int64_t width, int bits, int fake_bits, uintptr_t scales, bool by_row,
                 bool half, uintptr_t map, int64_t num_ids, int64_t span) {
  require(num_rows >= 0 && num_rows <= kMostRows && width >= 1 && width <= kMost / (num_rows + 1),
          "table: rows must be in [0, 2^32), width at least 1");
  require(bits == 32 || bits == 8 || bits == 4 || bits == 2, "table: bits must be 32, 8, 4 or 2");
  require(fake_bits == 0 || (bits == 32 && (fake_bits == 8 || fake_bits == 4 || fake_bits == 2)),
          "table: floats are rounded to 8, 4 or 2 bits");
  require(num_rows == 0 || data, "table: data must not be null");
  require(num_rows == 0 || bits == 32 || scales, "table: codes need scales");
  require(!fake_bits || by_row || scales, "table: rounding needs a scale, or scales of rows");
  require(span == 0 || (span > 0 && span % table::kLanes == 0 && by_row && bits != 32),
          "table: spans are of codes by row, and of whole 16 columns");
  require(num_ids >= 0 && (map || num_ids == num_rows), "table: without a map, ids are rows");
  const int32_t* entries = reinterpret_cast<const int32_t*>(map);
  for (int64_t i = 0; map && i < num_ids; ++i)
    require(entries[i] >= 0 && entries[i] < num_rows, "table: the map names a row that is not there");
  return {reinterpret_cast<const void*>(data), num_rows, width, bits, fake_bits,
          reinterpret_cast<const float*>(scales), by_row, half, entries, num_ids, span};
}

Bags make_bags(uintptr_t ids, int64_t num_positions, uintptr_t offsets, int64_t bag_size, int64_t num_bags,
               uintptr_t weights, bool mean, int64_t padding) {
  require(num_positions >= 0 && num_positions <= std::numeric_limits<uint32_t>::max(),
          "bags: positions must be in [0, 2^32)");
  require(num_bags >= 0 && num_bags <= std::numeric_limits<uint32_t>::max(), "bags: must be in [0, 2^32)");
  require(num_positions == 0 || ids, "bags: ids must not be null");
  const int64_t* at = reinterpret_cast<const int64_t*>(offsets);
  if (at) {
    require(at[0] == 0, "bags: offsets must begin with 0");
    int64_t before = 0;
    for (int64_t i = 0; i <= num_bags; ++i) {
      require(at[i] >= before && at[i] <= num_positions, "bags: offsets must ascend from 0 to the number of ids");
      before = at[i];
    }
  } else {
    require(bag_size >= 0 && (bag_size == 0 || num_bags <= num_positions / bag_size),
            "bags: more positions than there are ids");
  }
  return {reinterpret_cast<const int64_t*>(ids), num_positions, at, bag_size, num_bags,
          reinterpret_cast<const float*>(weights), mean, padding};
}

// One pass over the ids, before memory is touched.
void check_ids(const Table& table, const Bags& bags) {
  uint64_t largest = 0;
  for (int64_t p = 0; p < bags.num_positions; ++p) largest = std::max(largest, static_cast<uint64_t>(bags.ids[p]));
  if (bags.num_positions == 0 || largest < static_cast<uint64_t>(table.num_ids)) return;
  for (int64_t p = 0; p < bags.num_positions; ++p)
    if (bags.ids[p] < 0 || bags.ids[p] >= table.num_ids)
      throw nb::index_error(("id " + std::to_string(bags.ids[p]) + " at position " + std::to_string(p) +
                             " is outside of [0, " + std::to_string(table.num_ids) + ")").c_str());
}

nb::tuple run_pool(const Table& table, const Bags& bags, uintptr_t out, int64_t out_stride, const std::string& kernels) {
  require(bags.num_bags == 0 || (out && out_stride >= table.width), "pool: out must be [bags, width]");
  const Isa isa = find_isa(kernels);
  check_ids(table, bags);
  table::Seen seen;
  {
    nb::gil_scoped_release release;
    seen = table::pool(table, bags, reinterpret_cast<float*>(out), out_stride, isa, omp_get_max_threads());
  }
  return nb::make_tuple(seen.top, seen.clipped);
}

// Tables of one width that are looked up together.
struct TableSet {
  std::vector<Table> tables;
  std::vector<int64_t> paddings;

  TableSet(std::vector<Table> given, std::vector<int64_t> ids) : tables(std::move(given)), paddings(std::move(ids)) {
    require(paddings.size() == tables.size(), "tables: one padding for each table");
    for (const Table& table : tables) {
      require(table.width == tables[0].width, "tables: must have one width");
      require(!table.fake_bits, "tables: rows that are rounded on the way are looked up one by one");
    }
  }
};

void run_pairs(const TableSet& set, uintptr_t ids, int64_t batch, uintptr_t first, uintptr_t out,
               const std::string& kernels) {
  const int64_t count = static_cast<int64_t>(set.tables.size());
  require(count > 0 && batch >= 0 && batch <= kMostRows, "pairs: needs tables, and a batch below 2^32");
  require(batch == 0 || (ids && out), "pairs: ids and out must not be null");
  const int64_t* const at = reinterpret_cast<const int64_t*>(ids);
  for (int64_t i = 0; i < batch * count; ++i) {
    const int64_t num_ids = set.tables[static_cast<size_t>(i % count)].num_ids;
    if (at[i] < 0 || at[i] >= num_ids)
      throw nb::index_error(("id " + std::to_string(at[i]) + " of table " + std::to_string(i % count) + " at position " +
                             std::to_string(i / count) + " is outside of [0, " + std::to_string(num_ids) + ")").c_str());
  }
  const table::Pairs pairs = {set.tables.data(), set.paddings.data(), count, set.tables[0].width, at, batch,
                              reinterpret_cast<const float*>(first), reinterpret_cast<float*>(out)};
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  table::pairs(pairs, isa, omp_get_max_threads());
}

Groups run_group(const Table& table, const Bags& bags) {
  check_ids(table, bags);
  nb::gil_scoped_release release;
  return table::group_by_row(table, bags);
}

struct Step {
  Rule rule = Rule::none;
  float lr = 0, eps = 0, mean_rate = 0, square_rate = 0;
  float *sums = nullptr, *means = nullptr, *squares = nullptr;
  uint64_t noise = 0;
};

Step make_step(int rule, double lr, double eps, double mean_rate, double square_rate, uintptr_t sums, uintptr_t means,
               uintptr_t squares, uint64_t noise) {
  require(rule >= 1 && rule <= 3, "step: rule must be 1 (sgd), 2 (adagrad) or 3 (adam)");
  const Step step = {static_cast<Rule>(rule), static_cast<float>(lr), static_cast<float>(eps),
                     static_cast<float>(mean_rate), static_cast<float>(square_rate), reinterpret_cast<float*>(sums),
                     reinterpret_cast<float*>(means), reinterpret_cast<float*>(squares), noise};
  return step;
}

void check_step(const Table& table, const Step& step) {
  require(!table.map && !table.fake_bits, "update: a table with a map is not trained");
  require(table.bits != 2, "update: tables of 2 bits are not trained in place");
  require(table.bits == 32 || (table.by_row && !table.span), "update: codes that are trained have a scale for each row");
  require(table.num_rows == 0 || step.rule != Rule::adagrad || step.sums, "update: Adagrad needs its sums");
  require(table.num_rows == 0 || step.rule != Rule::adam || (step.means && step.squares), "update: Adam needs moments");
  require(table.bits == 32 || step.rule != Rule::adam, "update: codes are trained by SGD and Adagrad");
}

table::Update update_of(const Table& table, const Step& step) {
  table::Update update = {};
  update.rule = step.rule;
  update.data = const_cast<void*>(table.data);
  update.bits = table.bits;
  update.width = table.width;
  update.scales = table.bits == 32 ? nullptr : const_cast<float*>(table.scales);
  update.noise = step.noise;
  update.sums = step.sums, update.means = step.means, update.squares = step.squares;
  update.lr = step.lr, update.eps = step.eps;
  update.mean_rate = step.mean_rate, update.square_rate = step.square_rate;
  return update;
}

void take_groups(table::Update& update, const Groups& groups, const Bags& bags, uintptr_t grad, int64_t grad_stride) {
  require(groups.order.empty() || grad, "update: grad must not be null");
  require(bags.num_bags < 2 || grad_stride >= 0, "update: rows of the gradient must not overlap backwards");
  for (const uint32_t position : groups.order)
    require(position < bags.num_positions, "update: these are groups of another batch");
  update.grad = reinterpret_cast<const float*>(grad);
  update.grad_stride = grad_stride;
  update.num_segments = static_cast<int64_t>(groups.rows.size());
  update.rows = groups.rows.data();
  update.order = groups.order.data();
  update.first = groups.first.data();
  update.bag_of = groups.bag_of.empty() ? nullptr : groups.bag_of.data();
  update.weights = bags.weights;
  update.bag_factors = groups.bag_factors.empty() ? nullptr : groups.bag_factors.data();
}

void run_gradient(const Table& table, const Groups& groups, const Bags& bags, uintptr_t grad, int64_t grad_stride,
                  uintptr_t values, const std::string& kernels) {
  table::Update update = {};
  update.width = table.width;
  update.bits = 32;
  update.values = reinterpret_cast<float*>(values);
  require(groups.rows.empty() || values, "gradient: values must not be null");
  take_groups(update, groups, bags, grad, grad_stride);
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  table::update(update, isa, omp_get_max_threads());
}

void run_fused(const Table& table, const Groups& groups, const Bags& bags, uintptr_t grad, int64_t grad_stride,
               const Step& step, const std::string& kernels) {
  check_step(table, step);
  require(groups.rows.empty() || groups.rows.back() < table.num_rows, "update: these are groups of another table");
  table::Update update = update_of(table, step);
  take_groups(update, groups, bags, grad, grad_stride);
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  table::update(update, isa, omp_get_max_threads());
}

void run_step(const Table& table, uintptr_t rows, int64_t count, uintptr_t values, const Step& step,
              const std::string& kernels) {
  check_step(table, step);
  require(count >= 0 && (count == 0 || (rows && values)), "update: rows and values must not be null");
  const int64_t* at = reinterpret_cast<const int64_t*>(rows);
  int64_t before = -1;
  for (int64_t i = 0; i < count; ++i) {
    require(at[i] > before && at[i] < table.num_rows, "update: rows must ascend, each once, within the table");
    before = at[i];
  }
  table::Update update = update_of(table, step);
  update.grad = reinterpret_cast<const float*>(values);
  update.grad_stride = table.width;
  update.num_segments = count;
  update.rows = at;
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  table::update(update, isa, omp_get_max_threads());
}

uint32_t run_top(uintptr_t values, int64_t count, const std::string& kernels) {
  require(count >= 0 && (count == 0 || values), "top: values must not be null");
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  return table::top(reinterpret_cast<const float*>(values), count, isa, omp_get_max_threads());
}

void run_encode(const Table& floats, int bits, uintptr_t codes, uintptr_t scales, const std::string& kernels) {
  require(floats.bits == 32, "encode: takes a table of floats");
  require(bits == 8 || bits == 4 || bits == 2, "encode: bits must be 8, 4 or 2");
  require(scales && (floats.num_rows == 0 || codes), "encode: codes and scales must not be null");
  const Isa isa = find_isa(kernels);
  nb::gil_scoped_release release;
  table::encode(floats, bits, reinterpret_cast<uint8_t*>(codes), reinterpret_cast<float*>(scales), isa,
                omp_get_max_threads());
}

}  // namespace

void bind_table(nb::module_& m) {
  nb::class_<Table>(m, "Table");
  nb::class_<Bags>(m, "Bags");
  nb::class_<TableSet>(m, "TableSet")
      .def(nb::init<std::vector<Table>, std::vector<int64_t>>(), nb::arg("tables"), nb::arg("paddings"))
      .def("pairs", &run_pairs, nb::arg("ids"), nb::arg("batch"), nb::arg("first"), nb::arg("out"), nb::arg("kernels"));
  nb::class_<Step>(m, "RowStep");
  nb::class_<Groups>(m, "RowGroups")
      .def_prop_ro("num_rows", [](const Groups& groups) { return groups.rows.size(); })
      .def("copy_rows", [](const Groups& groups, uintptr_t to) {
        require(groups.rows.empty() || to, "rows: must not be null");
        std::copy(groups.rows.begin(), groups.rows.end(), reinterpret_cast<int64_t*>(to));
      }, nb::arg("to"));
  m.def("table", &make_table, nb::arg("data"), nb::arg("num_rows"), nb::arg("width"), nb::arg("bits"),
        nb::arg("fake_bits"), nb::arg("scales"), nb::arg("by_row"), nb::arg("half"), nb::arg("map"), nb::arg("num_ids"),
        nb::arg("span"));
  m.def("bags", &make_bags, nb::arg("ids"), nb::arg("num_positions"), nb::arg("offsets"), nb::arg("bag_size"),
        nb::arg("num_bags"), nb::arg("weights"), nb::arg("mean"), nb::arg("padding"));
  m.def("row_step", &make_step, nb::arg("rule"), nb::arg("lr"), nb::arg("eps"), nb::arg("mean_rate"),
        nb::arg("square_rate"), nb::arg("sums"), nb::arg("means"), nb::arg("squares"), nb::arg("noise"));
  m.def("table_pool", &run_pool, nb::arg("table"), nb::arg("bags"), nb::arg("out"), nb::arg("out_stride"),
        nb::arg("kernels"));
  m.def("table_groups", &run_group, nb::arg("table"), nb::arg("bags"));
  m.def("table_gradient", &run_gradient, nb::arg("table"), nb::arg("groups"), nb::arg("bags"), nb::arg("grad"),
        nb::arg("grad_stride"), nb::arg("values"), nb::arg("kernels"));
  m.def("table_update", &run_fused, nb::arg("table"), nb::arg("groups"), nb::arg("bags"), nb::arg("grad"),
        nb::arg("grad_stride"), nb::arg("step"), nb::arg("kernels"));
  m.def("table_step", &run_step, nb::arg("table"), nb::arg("rows"), nb::arg("count"), nb::arg("values"),
        nb::arg("step"), nb::arg("kernels"));
  m.def("huge_pages", [](uintptr_t memory, size_t bytes) {
    nb::gil_scoped_release release;
    return memory != 0 && table::ask_for_huge_pages(reinterpret_cast<void*>(memory), bytes);
  }, nb::arg("memory"), nb::arg("bytes"));
  m.def("table_top", &run_top, nb::arg("values"), nb::arg("count"), nb::arg("kernels"));
  m.def("table_encode", &run_encode, nb::arg("floats"), nb::arg("bits"), nb::arg("codes"), nb::arg("scales"),
        nb::arg("kernels"));
}

}  // namespace gossamer::bind
