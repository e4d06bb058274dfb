// Libraries opened at run time and the tables of functions looked up in them: drivers of CUDA and
// HIP, NVRTC, hipRTC. One X-macro of each library lists member, symbol names and signature.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::jit {

/// One function of a table. `names`: the symbol, and after '|' what it is called in other versions.
struct FunctionEntry {
  std::string_view names;
  bool required;
  void** slot;  ///< where the address goes; null for an optional function that is not there
};

/// Opens the first of `names` that the loader finds and never closes it (driver threads may run in it). Null, with the
/// loader's messages in `reason`, where there is none.
[[nodiscard]] void* open_library(std::span<const std::string> names, std::string& reason);
/// The file that a library was opened from; `otherwise` where the system does not say.
[[nodiscard]] std::string library_path(void* library, const std::string& otherwise);

/// Fills every slot. Returns an empty text, or which required function is missing from `library_name`.
[[nodiscard]] std::string look_up_functions(void* library, std::string_view library_name,
                                            std::span<const FunctionEntry> entries);

}  // namespace tilewise::jit

// Expand an X-macro's rows into members and into entries of `table`; the signature comes last, as it has commas.
#define TILEWISE_FUNCTION_MEMBER(member, names, is_required, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
#define TILEWISE_FUNCTION_ENTRY(member, names, is_required, ...) \
  ::tilewise::jit::FunctionEntry{names, is_required, reinterpret_cast<void**>(&table.member)},
