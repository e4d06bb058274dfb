// What ends a block under emulation: the first lane that did wrong.
#pragma once

#include <string>
#include <utility>

#include "core/message.hpp"

namespace tilewise::backends::emulation {

/// Ends the lane that did wrong; the others are abandoned where they wait.
class LaneFault {
 public:
  explicit LaneFault(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw LaneFault(core::concat(parts...));
}

inline void check(std::string fault) {
  if (!fault.empty()) throw LaneFault(std::move(fault));
}

}  // namespace tilewise::backends::emulation
