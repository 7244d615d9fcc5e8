// SPDX-License-Identifier: Apache-2.0
// Panel layouts made anew in every call, for weights whose values change every step.
//
// Nothing but the mask bits outlives a call, so training keeps no index; a call decodes the bits and
// moves the values in a few cycles per kept weight, which many tokens pay back.
#pragma once
#include <cstdint>
#include <vector>

#include "gossamer/panel_layout.hpp"

namespace gossamer {

// A layout and the way into it: the kept weights of a row of a block stand from its first slot on,
// `group_rows` apart.
struct FreshPanel {
  PanelLayout layout;
  std::vector<int64_t> first_slots;  // [num_blocks][rows]
  std::vector<uint16_t> counts;      // [num_blocks][rows]
  std::vector<int64_t> row_start;    // into the values in row-major order; of untransposed panels only
};

// Orders the rows of every block by falling count and gives each its slots, which are zeros still.
FreshPanel place_rows(PanelLayout layout, std::vector<uint16_t> counts);

// The layout of W, equal to that of pack_panel. Without values (a null pointer) it holds positions only.
// `parts` as for cut_panel. May throw std::bad_alloc.
FreshPanel fresh_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads, int64_t parts = 1);

// The layout of the transposed weight, [columns][rows].
FreshPanel fresh_transposed_panel(const KeptWeight& weight, const PanelShape* shapes, int num_threads);

// One float per slot of a layout of `fresh_panel`, back in row-major order.
void gather_slots(const FreshPanel& panel, const float* slots, float* values, int num_threads);

}  // namespace gossamer
