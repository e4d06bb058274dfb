// posix_spawn, so that starting a compiler neither copies the caller's page tables nor runs its fork handlers.
#include "jit/child_process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/message.hpp"

extern char** environ;

namespace tilewise::jit {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLongestOutput = std::size_t{256} << 20;

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  [[nodiscard]] int get() const { return value_; }
  void close() {
    if (value_ >= 0) ::close(value_);
    value_ = -1;
  }

 private:
  int value_;
};

/// The two ends of a pair of sockets, on which a reader that went away is an error and not a signal.
bool make_channel(Descriptor& ours, Descriptor& theirs) {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
  return true;
}

bool make_pipe(Descriptor& ours, Descriptor& theirs) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
  return true;
}

/// The caller's environment with messages in English.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables{"LC_ALL=C"};
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("LC_ALL=") && !text.starts_with("LANGUAGE=")) variables.emplace_back(text);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// What posix_spawn is told; freed with the object.
struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
};

/// A function that only newer C libraries have than the one the library is built for; null where it lacks.
template <typename Function>
Function* newer_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// The caller's own descriptors are not all marked close-on-exec: since glibc 2.34 they can be closed.
const auto kCloseFrom =
    newer_function<int(posix_spawn_file_actions_t*, int)>("posix_spawn_file_actions_addclosefrom_np");
const auto kChangeFolder =
    newer_function<int(posix_spawn_file_actions_t*, const char*)>("posix_spawn_file_actions_addchdir_np");

int start(const std::vector<std::string>& arguments, const std::string& folder, int input, int output, int errors,
          pid_t& child) {
  SpawnSettings settings;
  posix_spawn_file_actions_adddup2(&settings.actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&settings.actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&settings.actions, errors, STDERR_FILENO);
  if (kCloseFrom) kCloseFrom(&settings.actions, STDERR_FILENO + 1);
  if (!folder.empty() && kChangeFolder) kChangeFolder(&settings.actions, folder.c_str());
  const bool by_shell = !folder.empty() && !kChangeFolder;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &all);
  posix_spawnattr_setpgroup(&settings.attributes, 0);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = by_shell ? command_in(folder, arguments) : arguments,
                           variables = child_environment();
  return posix_spawnp(&child, words.front().c_str(), &settings.actions, &settings.attributes, pointers(words).data(),
                      pointers(variables).data());
}

/// Reads what is there; closes the descriptor at its end.
void read_some(Descriptor& from, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(from.get(), buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), std::min(static_cast<std::size_t>(count), kLongestOutput - text.size()));
  } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
    from.close();
  }
}

void write_some(Descriptor& to, std::string_view& input) {
  const ssize_t count = send(to.get(), input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) input.remove_prefix(static_cast<std::size_t>(count));
  if (input.empty() || (count < 0 && errno != EINTR && errno != EAGAIN)) to.close();
}

/// One turn of waiting for the child to read or write; at most `milliseconds`.
void exchange(Descriptor& input, std::string_view& rest, Descriptor& output, Descriptor& errors, ChildResult& result,
              int milliseconds) {
  std::array<pollfd, 3> waits = {{{input.get(), POLLOUT, 0},
                                  {output.get(), POLLIN, 0},
                                  {errors.get(), POLLIN, 0}}};  // poll skips closed ones (-1)
  if (poll(waits.data(), waits.size(), milliseconds) <= 0) return;
  if (waits[0].revents) write_some(input, rest);
  if (waits[1].revents) read_some(output, result.output);
  if (waits[2].revents) read_some(errors, result.errors);
}

/// True once the child has ended. Where someone else reaped it (SIGCHLD ignored), how it ended is not known.
bool reap(pid_t child, ChildResult& result) {
  int status = 0;
  const pid_t reaped = waitpid(child, &status, WNOHANG);
  if (reaped == 0 || (reaped < 0 && errno == EINTR)) return false;
  if (reaped == child) {
    result.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  return true;
}

}  // namespace

std::string ChildResult::ending() const {
  if (!start_error.empty()) return start_error;
  if (timed_out) return core::concat("stopped after ", static_cast<int>(seconds + 0.5), " s");
  if (signal != 0) return core::concat("ended by signal ", signal, " (", strsignal(signal), ")");
  return core::concat("exit status ", exit_status);
}

std::vector<std::string> command_in(const std::string& folder, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"/bin/sh", "-c", "cd -- \"$0\" && exec \"$@\"", folder};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

ChildResult run_child(const std::vector<std::string>& arguments, std::string_view input, const std::string& folder,
                      double limit_seconds) {
  ChildResult result;
  const Clock::time_point begin = Clock::now();
  Descriptor to_child, child_input, from_child, child_output, errors_from_child, child_errors;
  if (!make_channel(to_child, child_input) || !make_pipe(from_child, child_output) ||
      !make_pipe(errors_from_child, child_errors)) {
    result.start_error = core::concat("no pipe: ", std::strerror(errno));
    return result;
  }
  pid_t child = 0;
  const int error = start(arguments, folder, child_input.get(), child_output.get(), child_errors.get(), child);
  child_input.close(), child_output.close(), child_errors.close();
  if (error != 0) {
    result.start_error = core::concat(arguments.front(), ": ", std::strerror(error));
    return result;
  }
  if (input.empty()) to_child.close();
  // The ends of the pipes usually tell that the child is done. A process that inherited one (a fork of the caller at
  // the wrong moment) may keep it open, so the child itself is asked every 20 ms too, and without pause once they
  // closed.
  bool ended = false;
  while (!ended) {
    const bool closed = from_child.get() < 0 && errors_from_child.get() < 0;
    exchange(to_child, input, from_child, errors_from_child, result, closed ? 1 : 20);
    ended = reap(child, result);
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!ended && !result.timed_out && result.seconds > limit_seconds) {
      result.timed_out = true;
      kill(-child, SIGKILL);
    }
  }
  kill(-child, SIGKILL);  // what it may have left behind
  for (int turns = 0; turns < 4096 && (from_child.get() >= 0 || errors_from_child.get() >= 0); ++turns) {
    const std::size_t before = result.output.size() + result.errors.size();
    exchange(to_child, input, from_child, errors_from_child, result, 0);
    const bool open = from_child.get() >= 0 || errors_from_child.get() >= 0;
    if (open && result.output.size() + result.errors.size() == before) break;
  }
  return result;
}

}  // namespace tilewise::jit
