// Files that somebody else may write are neither loaded nor run, and the reason is told: caches, bundles, compilers.
#include "jit/trust.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "jit/bundle.hpp"
#include "jit/disk_cache.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

class Trust : public JitTest {
 protected:
  static void set_mode(const fs::path& path, mode_t mode) { ASSERT_EQ(chmod(path.c_str(), mode), 0) << path; }
  /// Gives a file away, which root alone can do; a link itself rather than what it leads to.
  static void give_to(const fs::path& path, uid_t user, gid_t group) {
    ASSERT_EQ(lchown(path.c_str(), user, group), 0) << path;
  }
  [[nodiscard]] fs::path make(const char* name) const {
    const fs::path path = folder() / name;
    write(path, "text");
    return path;
  }
  static std::string by_mode(const fs::path& path, const char* mode) {
    return path.string() + ": must be writable by nobody else than its owner (mode " + mode + ")";
  }
  static constexpr uid_t kStranger = 4321;
};

TEST_F(Trust, OwnFilesAndAbsentOnesAreTrusted) {
  EXPECT_EQ(distrust(make("below/file")), "");
  EXPECT_EQ(distrust(folder() / "absent" / "file"), "");
  EXPECT_EQ(distrust("/usr/bin/env"), "");
  EXPECT_EQ(distrust_program("/bin/sh"), "");
}

TEST_F(Trust, WhatOthersMayWriteIsNot) {
  const fs::path file = make("below/file");
  set_mode(file, 0666);
  EXPECT_EQ(distrust(file), by_mode(file, "0666"));
  set_mode(file, 0644);
  set_mode(file.parent_path(), 0777);
  EXPECT_EQ(distrust(file), by_mode(file.parent_path(), "0777"));
  EXPECT_EQ(distrust(file.parent_path() / "absent"), by_mode(file.parent_path(), "0777"));
}

TEST_F(Trust, StickyFoldersKeepWhatIsOnesOwn) {
  const fs::path file = make("below/file");
  set_mode(file.parent_path(), 01777);
  EXPECT_EQ(distrust(file), "");
  EXPECT_EQ(distrust(file.parent_path()), by_mode(file.parent_path(), "01777")) << "others may add files to it";
  EXPECT_EQ(distrust_program(file), by_mode(file.parent_path(), "01777")) << "it may load what others put beside it";
}

TEST_F(Trust, LinksAreFollowedStepByStep) {
  const fs::path file = make("safe/file");
  write(folder() / "open" / "file", "text");
  fs::create_symlink("../open/../safe", folder() / "safe" / "around");
  EXPECT_EQ(distrust(folder() / "safe" / "around" / "file"), "");
  set_mode(folder() / "open", 0777);
  EXPECT_EQ(distrust(folder() / "safe" / "around" / "file"), by_mode(folder() / "open", "0777"))
      << "whoever writes open/ may put a link in the place of what the way goes through";
  fs::create_symlink(file, folder() / "open" / "link");
  EXPECT_EQ(distrust(folder() / "open" / "link"), by_mode(folder() / "open", "0777"));
  fs::create_symlink("loop", folder() / "loop");
  EXPECT_EQ(distrust(folder() / "loop"), (folder() / "loop").string() + ": can't be followed");
}

TEST_F(Trust, OwnersAndGroupsCount) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone can give files away";
  const fs::path file = make("below/file");
  set_mode(file, 0664);
  EXPECT_EQ(distrust(file), "") << "root's group is root's alone";
  give_to(file, 0, kStranger);
  EXPECT_EQ(distrust(file), file.string() + ": must be writable by nobody else than its owner (mode 0664, group 4321)");
  set_mode(file, 0644);
  EXPECT_EQ(distrust(file), "");
  give_to(file, kStranger, 0);
  const std::string words = ": must belong to this user (0) or root (belongs to user 4321)";
  EXPECT_EQ(distrust(file), file.string() + words);
  give_to(file, 0, 0);
  give_to(file.parent_path(), kStranger, 0);
  EXPECT_EQ(distrust(file), file.parent_path().string() + words) << "its owner may rename what is in it";
  give_to(file.parent_path(), 0, 0);
  fs::create_symlink(file, folder() / "link");
  give_to(folder() / "link", kStranger, 0);
  EXPECT_EQ(distrust(folder() / "link"), (folder() / "link").string() + words);
}

class TrustedCache : public Trust {
 protected:
  TrustedCache() { set_variable("TILEWISE_CXX", make_compiler("compiler", "echo machine code > kernel.out")); }
  /// Compiles or loads, in a process that knows nothing; how often a compiler ran by then.
  std::size_t compile() {
    forget_kernels();
    static_cast<void>(find_or_compile(kHost, doubling_kernel()));
    return runs();
  }
};

TEST_F(TrustedCache, FoldersThatOthersMayWriteAreNotUsed) {
  EXPECT_EQ(compile(), 1U);
  EXPECT_EQ(compile(), 1U) << "from the disk";
  for (const fs::path& place : {cache(), cache() / "kernels"}) {
    const std::size_t before = runs();
    set_mode(place, 0777);
    EXPECT_EQ(compile(), before + 1) << place;
    EXPECT_EQ(cache_folder_reason(), by_mode(place, "0777") + "; kernels there are ignored");
    ASSERT_EQ(list_disk_cache().size(), 1U);
    EXPECT_EQ(list_disk_cache()[0].fault, "not trusted: " + by_mode(place, "0777"));
    set_mode(place, 0700);
    EXPECT_EQ(compile(), before + 1) << "trusted again";
  }
  EXPECT_EQ(cache_folder_reason(), "");
}

TEST_F(TrustedCache, NothingIsPutIntoThem) {
  fs::create_directory(cache());
  set_mode(cache(), 0777);
  EXPECT_EQ(compile(), 1U);
  EXPECT_TRUE(fs::is_empty(cache())) << "no kernel, no lock, no answer";
}

TEST_F(TrustedCache, FilesOfOthersAreNotLoaded) {
  EXPECT_EQ(compile(), 1U);
  ASSERT_EQ(kernel_files().size(), 1U);
  set_mode(kernel_files()[0], 0666);
  EXPECT_EQ(compile(), 2U) << "and what was compiled took its place";
  EXPECT_EQ(compile(), 2U);
  if (geteuid() != 0) GTEST_SKIP() << "root alone can give files away";
  give_to(kernel_files()[0], kStranger, 0);
  EXPECT_EQ(compile(), 3U);
}

TEST_F(TrustedCache, AnswersOfOthersAreAskedAgain) {
  int asked = 0;
  const fs::path program = make("program");
  const auto ask = [&] { return remembered_answer(program, "version", [&] { return std::to_string(++asked); }); };
  EXPECT_EQ(ask(), "1");
  EXPECT_EQ(ask(), "1");
  for (const auto& entry : fs::directory_iterator(cache() / "answers")) set_mode(entry.path(), 0666);
  EXPECT_EQ(ask(), "2");
}

TEST_F(TrustedCache, EveryFolderThatIsMadeIsForThisUser) {
  set_variable("TILEWISE_CACHE_DIR", (folder() / "a" / "b").string());
  const mode_t former = umask(0);
  EXPECT_EQ(compile(), 1U);
  umask(former);
  struct stat status{};
  for (const char* name : {"a", "a/b", "a/b/kernels"}) {
    ASSERT_EQ(stat((folder() / name).c_str(), &status), 0) << name;
    EXPECT_EQ(status.st_mode & 0777U, 0700U) << name;
  }
}

TEST_F(TrustedCache, BundlesOfOthersAreIgnored) {
  const fs::path path = folder() / "kernels.bundle";
  write_bundle(path.string(), std::vector<BundleEntry>{make_bundle_entry(kHost, doubling_kernel())});
  fs::remove_all(cache());
  set_mode(path, 0666);
  set_variable("TILEWISE_BUNDLE", path.string());
  EXPECT_EQ(compile(), 2U);
  const std::string reason = "TILEWISE_BUNDLE: " + path.string() + " is ignored: " + by_mode(path, "0666");
  EXPECT_EQ(bundle_faults(), std::vector<std::string>{reason});
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { load_bundle(path.string()); }),
            "bundle: " + by_mode(path, "0666"));
  fs::remove_all(cache());
  set_variable("TILEWISE_CXX", "no-such-compiler");
  const std::string message = error_of(ErrorCode::unsupported, [this] { compile(); });
  EXPECT_NE(message.find("; " + reason), std::string::npos) << message;
  set_mode(path, 0600);
  EXPECT_EQ(bundle_faults(), std::vector<std::string>{});
  EXPECT_EQ(compile(), 2U);
}

TEST_F(TrustedCache, CompilersOfOthersAreIgnored) {
  const fs::path compiler = folder() / "compiler";
  set_mode(compiler, 0777);
  const std::string message = error_of(ErrorCode::unsupported, [this] { compile(); });
  EXPECT_NE(message.find("no C++ compiler that runs found as " + compiler.string() +
                         " (TILEWISE_CXX); ignored: " + by_mode(compiler, "0777")),
            std::string::npos)
      << message;
  EXPECT_EQ(runs(), 0U) << "not even for its version";
}

TEST_F(TrustedCache, TheNextCompilerOfThePathIsTaken) {
  set_variable("TILEWISE_CXX", "");
  make_compiler("open/c++", "echo foreign > kernel.out");
  const std::string safe = make_compiler("safe/c++", "echo machine code > kernel.out");
  set_variable("PATH", (folder() / "open").string() + ":" + fs::path(safe).parent_path().string() + ":/usr/bin:/bin");
  set_mode(folder() / "open", 0777);
  forget_kernels();
  const auto kernel = find_or_compile(kHost, doubling_kernel());
  EXPECT_EQ(kernel->image.size(), std::string("machine code\n").size());
  EXPECT_EQ(ignored_compilers(kHost), by_mode(folder() / "open", "0777"));
  EXPECT_EQ(compiler_reason(kHost), "");
}

TEST_F(TrustedCache, LibrariesOfOthersAreIgnored) {
  const fs::path library = make("libraries/libnvrtc.so.12");
  for (const auto& [variable, target] :
       {std::pair("TILEWISE_NVRTC", "sm_80"), std::pair("TILEWISE_HIPRTC", "gfx942")}) {
    fs::copy_file(library, folder() / "libraries" / "libhiprtc.so", fs::copy_options::overwrite_existing);
    set_variable(variable, (folder() / "libraries").string());
    set_variable("TILEWISE_CLANG", "none");
    set_mode(folder() / "libraries", 0777);
    forget_kernels();
    EXPECT_NE(compiler_reason(parse_target(target)).find("ignored: " + by_mode(folder() / "libraries", "0777")),
              std::string::npos)
        << compiler_reason(parse_target(target));
    set_mode(folder() / "libraries", 0700);
  }
}

TEST_F(TrustedCache, TheCompilerProcessOfOthersIsIgnored) {
  const fs::path helper = make_compiler("helper", "");
  set_variable("TILEWISE_COMPILER", helper.string());
  set_mode(helper, 0777);
  EXPECT_EQ(compiler_reason(parse_target("sm_80")), "TILEWISE_COMPILER: " + by_mode(helper, "0777"));
}

}  // namespace
}  // namespace tilewise::jit
