// Whose files are loaded and run: those of this user and of root that nobody else may write. A kernel in a folder that
// others may write is their code in this process.
#pragma once

#include <filesystem>
#include <string>

namespace tilewise::jit {

/// Why what lies at `path` must not be loaded: the first of it, the folders above it and the links on the way to it
/// that belongs to somebody else than this user or root, or that somebody else may write. Empty where all is well. A
/// folder above that others may write passes where it is sticky, as /tmp is: they can't replace what is not theirs
/// there. Where nothing lies at `path` yet, the folders above it are judged.
[[nodiscard]] std::string distrust(const std::filesystem::path& path);

/// The same of a program or library, whose own folder must not be sticky either: it may load what lies beside it. It
/// may belong to the owner of the folder that Tilewise itself runs from too, whose code this is already (root in a
/// container runs what lies in a mounted folder of user 1000).
[[nodiscard]] std::string distrust_program(const std::filesystem::path& path);

}  // namespace tilewise::jit
