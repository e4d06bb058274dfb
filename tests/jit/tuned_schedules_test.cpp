// What was tuned comes back as it was kept, and not from another version or another user.
#include "jit/tuned_schedules.hpp"

#include <sys/stat.h>

#include "jit/disk_cache.hpp"
#include "support.hpp"
#include "tilewise/error.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

class TunedSchedules : public JitTest {
 protected:
  [[nodiscard]] fs::path file() const { return cache() / "tuned" / "sm_90a-132.txt"; }

  const core::TunedSchedules kept_{{core::tuning_key("cuda.hopper", "attention_forward seqlen_q=4"), "128x64/2/1"},
                                   {core::tuning_key("cuda.hopper", "attention_forward seqlen_q=5"), "192x64/4/2"}};
};

TEST_F(TunedSchedules, ComeBackForTheirKindOfDevice) {
  EXPECT_EQ(load_tuned_schedules("sm_90a-132"), nullptr);
  store_tuned_schedules("sm_90a-132", kept_);
  ASSERT_NE(load_tuned_schedules("sm_90a-132"), nullptr);
  EXPECT_EQ(*load_tuned_schedules("sm_90a-132"), kept_);
  EXPECT_EQ(load_tuned_schedules("sm_90a-114"), nullptr);
  store_tuned_schedules("sm_90a-132", {});
  EXPECT_TRUE(load_tuned_schedules("sm_90a-132")->empty());
  clear_disk_cache();
  EXPECT_EQ(load_tuned_schedules("sm_90a-132"), nullptr);
}

TEST_F(TunedSchedules, OfAnotherVersionAreIgnored) {
  store_tuned_schedules("sm_90a-132", kept_);
  write(file(), "tilewise 0.0.1\n128x64/2/1\tcuda.hopper attention_forward seqlen_q=4\n");
  EXPECT_EQ(load_tuned_schedules("sm_90a-132"), nullptr);
}

TEST_F(TunedSchedules, ThatOthersMayWriteAreIgnored) {
  store_tuned_schedules("sm_90a-132", kept_);
  ASSERT_EQ(chmod(file().c_str(), 0666), 0);
  EXPECT_EQ(load_tuned_schedules("sm_90a-132"), nullptr);
  ASSERT_EQ(chmod(file().parent_path().c_str(), 0777), 0);
  EXPECT_THROW(store_tuned_schedules("sm_90a-132", kept_), Error);
}

TEST_F(TunedSchedules, SayWhyTheyCantBeKept) {
  write(folder() / "file", "in the way");
  set_variable("TILEWISE_CACHE_DIR", (folder() / "file").string());
  EXPECT_THROW(store_tuned_schedules("sm_90a-132", kept_), Error);
}

}  // namespace
}  // namespace tilewise::jit
