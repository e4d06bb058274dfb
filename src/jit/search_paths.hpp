// Where programs and libraries that Tilewise uses at run time may lie.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"

namespace tilewise::jit {

/// An executable file: `name` itself where it has a slash, else the first in PATH. Empty where there is none. One that
/// distrust_program() (trust.hpp) speaks against is passed over, and the reason added to `ignored`.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, std::string& ignored);
/// `text` with one more sentence.
void add_sentence(std::string& text, const std::string& sentence);

/// The folder of the file that holds this code: the library, or the program or module it is linked into.
[[nodiscard]] std::filesystem::path own_folder();

/// Tells where Python packages are installed (the site-packages folders of the interpreter that loaded the library).
/// Packages with NVRTC are found there, besides in the environment that the library itself lies in.
TILEWISE_INTERNAL void add_package_folders(const std::vector<std::string>& folders);
/// The folders told so far, then those guessed from where the library lies, VIRTUAL_ENV and CONDA_PREFIX.
[[nodiscard]] std::vector<std::filesystem::path> package_folders();

/// Folders that may hold shared libraries: LD_LIBRARY_PATH, the system's, CUDA's.
[[nodiscard]] std::vector<std::filesystem::path> library_folders();

/// What finding a compiler depends on, as one text: searched again where it differs.
[[nodiscard]] std::string search_fingerprint();

}  // namespace tilewise::jit
