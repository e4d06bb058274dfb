// Scratch memory on a GPU for callers without an allocator of their own: each thread keeps a block for each
// device and stream, since work of one thread on one stream is ordered.
#pragma once

#include <cstddef>

#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// A block of at least `bytes` that stays this thread's and this stream's. Blocks used in a capture live for
/// ever, as the graph may be replayed. Throws Error (runtime): out of memory, or a capture for which no large
/// enough block is there.
[[nodiscard]] void* kept_workspace(Device device, void* stream, std::size_t bytes);

}  // namespace tilewise::core
