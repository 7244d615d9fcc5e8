// SPDX-License-Identifier: Apache-2.0
#include "table/pages.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#endif

namespace gossamer::table {

bool ask_for_huge_pages(void* memory, size_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory), first = (start + kPage - 1) & ~(kPage - 1);
  const uintptr_t last = (start + bytes) & ~(kPage - 1);
  if (last <= first) return false;
  if (madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) != 0) return false;
  // For memory that is in small pages already; Linux before 6.1 does not know it. One page after the other: where
  // none is to be had, the next one may be.
  bool all = true;
  for (uintptr_t page = first; page < last; page += kPage)
    all = madvise(reinterpret_cast<void*>(page), kPage, MADV_COLLAPSE) == 0 && all;
  return all;
#else
  (void)memory, (void)bytes;
  return false;
#endif
}

}  // namespace gossamer::table
