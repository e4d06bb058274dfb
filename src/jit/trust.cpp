// The way of a path, entry by entry, as the system itself walks it.
#include "jit/trust.hpp"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <list>

#include "core/message.hpp"
#include "jit/search_paths.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

/// A group that distributions make for each user, of the user's own name and with nobody else in it, beside a umask of
/// 002: its right to write is its user's. An access list may give the right to others, under the same bit.
bool is_owners_alone(const fs::path& path, const struct stat& status) {
  constexpr std::size_t kRoom = 16384;  // a group that does not fit has many members
  std::array<char, kRoom> user_text{}, group_text{};
  struct passwd user{}, *found_user = nullptr;
  struct group group{}, *found_group = nullptr;
  if (getpwuid_r(status.st_uid, &user, user_text.data(), kRoom, &found_user) != 0 || !found_user) return false;
  if (getgrgid_r(status.st_gid, &group, group_text.data(), kRoom, &found_group) != 0 || !found_group) return false;
  if (user.pw_gid != status.st_gid || std::strcmp(user.pw_name, group.gr_name) != 0) return false;
  for (char** member = group.gr_mem; *member; ++member) {
    if (std::strcmp(*member, user.pw_name) != 0) return false;
  }
  return lgetxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) < 0;
}

std::string mode_text(mode_t mode) {
  constexpr unsigned kPermissions = 07777;
  std::array<char, 8> digits{'0'};
  const auto result = std::to_chars(digits.data() + 1, digits.data() + digits.size(), mode & kPermissions, 8);
  return {digits.data(), result.ptr};
}

/// What speaks against one entry. `is_last`: it is what the path names, not something on the way there.
std::string fault_of(const fs::path& path, const struct stat& status, bool is_last, uid_t also_trusted) {
  if (status.st_uid != 0 && status.st_uid != geteuid() && status.st_uid != also_trusted) {
    return core::concat(path.string(), ": must belong to this user (", geteuid(), ") or root (belongs to user ",
                        status.st_uid, ")");
  }
  if (S_ISLNK(status.st_mode)) return {};  // its mode means nothing, and only its owner can change it
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0 && !is_last) return {};
  const bool others = (status.st_mode & S_IWOTH) != 0;
  const bool group = (status.st_mode & S_IWGRP) != 0 && !is_owners_alone(path, status);
  if (!others && !group) return {};
  return core::concat(path.string(), ": must be writable by nobody else than its owner (mode ",
                      mode_text(status.st_mode), others ? "" : core::concat(", group ", status.st_gid), ")");
}

/// The next words of the way, in front of those that are left.
void put_before(std::list<fs::path>& left, const fs::path& path) {
  left.insert(left.begin(), path.begin(), path.end());
}

std::string walk(const fs::path& path, uid_t also_trusted) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  std::error_code error;
  fs::path here;
  std::list<fs::path> left;
  put_before(left, fs::absolute(path, error));
  for (int links = 0; !left.empty();) {
    const fs::path word = left.front();
    left.pop_front();
    if (word.empty() || word == ".") continue;
    const fs::path next = word == ".." ? here.parent_path() : here / word;  // `here` holds no links
    struct stat status{};
    if (lstat(next.c_str(), &status) != 0) {
      return errno == ENOENT ? std::string() : core::concat(next.string(), ": ", std::strerror(errno));
    }
    if (std::string fault = fault_of(next, status, left.empty(), also_trusted); !fault.empty()) return fault;
    if (!S_ISLNK(status.st_mode)) {
      here = next;
      continue;
    }
    const fs::path target = fs::read_symlink(next, error);
    if (error || ++links > kMostLinks) return core::concat(next.string(), ": can't be followed");
    put_before(left, target);
    if (target.is_absolute()) here.clear();
  }
  return {};
}

}  // namespace

std::string distrust(const fs::path& path) { return walk(path, geteuid()); }

std::string distrust_program(const fs::path& path) {
  struct stat own{};
  const uid_t owner = stat(own_folder().c_str(), &own) == 0 ? own.st_uid : geteuid();
  std::string fault = walk(path, owner);
  if (!fault.empty()) return fault;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? std::string() : walk(real.parent_path(), owner);
}

}  // namespace tilewise::jit
