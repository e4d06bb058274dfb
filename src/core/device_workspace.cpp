// Blocks of device memory kept from call to call.
#include "core/device_workspace.hpp"

#include <vector>

#include "core/device.hpp"
#include "core/message.hpp"

namespace tilewise::core {
namespace {

struct Block {
  Device device;
  void* stream = nullptr;
  void* memory = nullptr;
  std::size_t bytes = 0;
  bool captured = false;
};

/// A thread's blocks. Freeing waits for the device, so nothing enqueued can still use them.
class Blocks {
 public:
  Blocks() = default;
  ~Blocks() {
    for (Block& block : blocks_) release(block);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  Block& of(Device device, void* stream) {
    for (Block& block : blocks_) {
      if (block.device == device && block.stream == stream) return block;
    }
    return blocks_.emplace_back(Block{device, stream});
  }

  static void release(Block& block) {
    if (!block.captured) device_system(block.device.type)->free(block.device.index, block.memory);
    block.memory = nullptr;
    block.bytes = 0;
    block.captured = false;
  }

 private:
  std::vector<Block> blocks_;
};

Blocks& blocks() {
  thread_local Blocks mine;
  return mine;
}

void grow(Block& block, std::size_t bytes) {
  Blocks::release(block);
  try {
    block.memory = device_system(block.device.type)->allocate(block.device.index, bytes);
  } catch (const Error& error) {
    throw Error(error.code(), concat("workspace: ", error.what()));
  }
  block.bytes = bytes;
}

}  // namespace

void* kept_workspace(Device device, void* stream, std::size_t bytes) {
  Block& block = blocks().of(device, stream);
  const bool capturing = device_system(device.type)->is_capturing(device.index, stream);
  if (block.bytes < bytes && capturing) {
    throw Error(ErrorCode::runtime,
                concat("workspace: can't allocate ", bytes,
                       " bytes while the stream is captured; run the same call on it before the capture"));
  }
  if (block.bytes < bytes) grow(block, bytes);
  block.captured |= capturing;
  return block.memory;
}

}  // namespace tilewise::core
