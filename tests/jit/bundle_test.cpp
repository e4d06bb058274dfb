// Bundles: kernels that need no compiler, in one file.
#include "jit/bundle.hpp"

#include "support.hpp"

namespace tilewise::jit {
namespace {

class Bundles : public JitTest {
 protected:
  Bundles() {
    set_variable("TILEWISE_CXX", make_compiler("compiler", "echo machine code > kernel.out"));
    path_ = (folder() / "kernels.bundle").string();
    std::vector<BundleEntry> entries;
    for (const char* tag : {"one", "two"}) entries.push_back(make_bundle_entry(kHost, doubling_kernel(tag)));
    write_bundle(path_, entries);
    // As on a machine that has neither a cache nor a compiler.
    std::filesystem::remove_all(cache());
    set_variable("TILEWISE_CXX", "no-such-compiler");
    forget_kernels();
  }
  std::string path_;
};

TEST_F(Bundles, ServeWithoutACompiler) {
  EXPECT_EQ(load_bundle(path_), 2U);
  for (const char* tag : {"one", "two"}) {
    const auto kernel = find_or_compile(kHost, doubling_kernel(tag));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(kernel->image.data()), kernel->image.size()), "machine code\n");
    EXPECT_EQ(kernel->symbol, "doubled");
    EXPECT_EQ(kernel->compiler, "g++ 1.2");
    EXPECT_EQ(kernel->compile_seconds, 0);
  }
  EXPECT_NE(find_compiled(kHost, doubling_kernel("one")), nullptr);
  error_of(ErrorCode::unsupported, [] { (void)find_or_compile(kHost, doubling_kernel("three")); });
  forget_kernels();
  error_of(ErrorCode::unsupported, [] { (void)find_or_compile(kHost, doubling_kernel("one")); });
}

TEST_F(Bundles, AreLoadedFromTheVariable) {
  const std::string other = (folder() / "other.bundle").string();
  write_bundle(other, {});
  set_variable("TILEWISE_BUNDLE", other + "::" + path_);
  EXPECT_NE(find_compiled(kHost, doubling_kernel("one")), nullptr);
  set_variable("TILEWISE_BUNDLE", path_ + ":/no/such/bundle");
  EXPECT_NE(find_compiled(kHost, doubling_kernel("one")), nullptr) << "in memory now";
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { (void)find_compiled(kHost, doubling_kernel("two")); }),
            "bundle: /no/such/bundle: can't be read");
}

TEST_F(Bundles, MatchOnTargetAndSource) {
  load_bundle(path_);
  KernelSource changed = doubling_kernel("one");
  changed.options = {"-O3"};
  EXPECT_EQ(find_compiled(kHost, changed), nullptr);
}

TEST_F(Bundles, DamageIsTold) {
  const std::string whole = read(path_);
  const auto refusal = [this](const std::string& bytes) {
    write(path_, bytes);
    const std::string message = error_of(ErrorCode::invalid_argument, [this] { load_bundle(path_); });
    EXPECT_TRUE(message.starts_with("bundle: " + path_ + ": ")) << message;
    return message.substr(10 + path_.size());
  };
  EXPECT_EQ(refusal("text"), "not a bundle of Tilewise");
  EXPECT_EQ(refusal(whole.substr(0, 20)), "cut off");
  EXPECT_EQ(refusal(whole.substr(0, whole.size() - 1)), "cut off");
  std::string foreign = whole, altered = whole;
  foreign[8] = 9;
  EXPECT_EQ(refusal(foreign), "of format 9, not 1");
  altered[60] = static_cast<char>(altered[60] ^ 1);
  EXPECT_EQ(refusal(altered), "altered (its checksum differs)");

  std::string kernel_altered = whole;
  kernel_altered.back() = static_cast<char>(kernel_altered.back() ^ 1);
  write(path_, kernel_altered);
  EXPECT_EQ(load_bundle(path_), 2U);
  EXPECT_NE(find_compiled(kHost, doubling_kernel("one")), nullptr);
  const std::string message =
      error_of(ErrorCode::unsupported, [] { (void)find_or_compile(kHost, doubling_kernel("two")); });
  EXPECT_NE(message.find(path_ + ": its kernel is altered"), std::string::npos) << message;
}

TEST_F(Bundles, ReplaceWholeFilesAndTellWhereTheyCannot) {
  write_bundle(path_, {});
  EXPECT_EQ(load_bundle(path_), 0U);
  const std::string message = error_of(ErrorCode::runtime, [] { write_bundle("/no/such/folder/file", {}); });
  EXPECT_TRUE(message.starts_with("bundle: create /no/such/folder/")) << message;
}

}  // namespace
}  // namespace tilewise::jit
