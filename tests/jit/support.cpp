// See support.hpp.
#include "support.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tilewise::jit {

namespace fs = std::filesystem;

JitTest::JitTest() {
  for (char** entry = environ; entry && *entry;) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    if (name.starts_with("TILEWISE_")) {
      set_variable(name, "");
      entry = environ;
    } else {
      ++entry;
    }
  }
  set_variable("TILEWISE_CACHE_DIR", cache().string());
  set_variable("TILEWISE_COMPILER", COMPILER_PROCESS);
  set_variable("TMPDIR", folder().string());  // what a killed compilation leaves goes with the test's own folder
  forget_kernels();
}

JitTest::~JitTest() {
  for (const auto& [name, value] : former_) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  forget_kernels();
}

void JitTest::set_variable(const std::string& name, const std::string& value) {
  const char* former = std::getenv(name.c_str());
  former_.try_emplace(name, former ? std::optional<std::string>(former) : std::nullopt);
  if (value.empty()) {
    unsetenv(name.c_str());
  } else {
    setenv(name.c_str(), value.c_str(), 1);
  }
}

std::vector<fs::path> JitTest::kernel_files() const {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(cache() / "kernels", error), end; !error && it != end; it.increment(error)) {
    files.push_back(it->path());
  }
  std::ranges::sort(files);
  return files;
}

void JitTest::write(const fs::path& path, std::string_view text) const {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string JitTest::read(const fs::path& path) const {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string JitTest::make_compiler(const std::string& name, const std::string& body, const std::string& version) {
  const fs::path path = folder() / name;
  write(path, "#!/bin/sh\nif [ \"$1\" = --version ]; then echo '" + version + "'; exit 0; fi\necho run >> '" +
                  (folder() / "runs").string() + "'\n" + body + "\n");
  fs::permissions(path, fs::perms::owner_all);
  return path.string();
}

std::size_t JitTest::runs() const {
  const std::string lines = read(folder() / "runs");
  return static_cast<std::size_t>(std::ranges::count(lines, '\n'));
}

std::string error_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

KernelSource doubling_kernel(const std::string& tag) {
  return {"#include \"device/common/mask.h\"\n// " + tag + "\nextern \"C\" int doubled(int x) { return 2 * x; }\n",
          "doubled",
          {}};
}

}  // namespace tilewise::jit
