// SPDX-License-Identifier: Apache-2.0
// Packed weights on their way to a file and back. Arrays cross as bytes that are not copied: a stored weight lends its
// own, a restored one keeps those it was given.
#include <nanobind/stl/unique_ptr.h>

#include <stdexcept>
#include <utility>

#include "common.hpp"
#include "families.hpp"
#include "gossamer/stored_weight.hpp"

namespace gossamer::bind {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Lent = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

// (family, numbers, arrays), or None where a family has no such form.
nb::object stored(nb::handle self) {
  StoredWeight out;
  if (!nb::cast<const PackedWeight&>(self).stored(&out)) return nb::none();
  nb::list numbers, arrays;
  for (const int64_t number : out.numbers) numbers.append(number);
  for (const StoredArray& array : out.arrays) {
    const size_t shape[1] = {array.bytes};
    arrays.append(Lent(array.data, 1, shape, self));
  }
  return nb::make_tuple(out.family, numbers, arrays);
}

std::unique_ptr<PackedWeight> restore(const std::string& family, const nb::sequence& numbers, const nb::sequence& arrays,
                                      const std::string& kernels) {
  StoredWeight stored = {family, items_of<int64_t>(numbers), {}};
  auto kept = std::make_unique<nb::list>();
  for (const nb::handle item : arrays) {
    const auto array = nb::cast<Bytes>(item);
    stored.arrays.push_back({array.data(), array.size()});
    kept->append(item);
  }
  const Keeper keeper(kept.release(), [](const void* held) {
    auto* const list = static_cast<nb::list*>(const_cast<void*>(held));
    if (!nb::is_alive()) return void(list->release());
    const nb::gil_scoped_acquire gil;
    delete list;
  });
  return restore_weight(stored, find_isa(kernels), keeper);
}

}  // namespace

void bind_stored(nb::module_& m) {
  m.def("stored_weight", [](const PackedWeight& weight) { return stored(nb::find(weight)); }, nb::arg("weight"));
  m.def("restore_weight", restore, nb::kw_only(), nb::arg("family"), nb::arg("numbers"), nb::arg("arrays"),
        nb::arg("kernels"));
}

}  // namespace gossamer::bind
