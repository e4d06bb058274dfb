// Stands in for NVRTC and hipRTC: the architecture says whether it compiles, reports an error, aborts or hangs.
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Program {
  std::string source, headers, log, image;
};

constexpr int kDone = 0, kCompilationError = 6;

int compile(Program& program, int count, const char* const* options) {
  std::string all;
  for (int i = 0; i < count; ++i) all += std::string(options[i]) + '\n';
  std::printf("words on standard output\n");
  std::fflush(stdout);
  const auto asked = [&all](const char* architecture) {
    return all.find(std::string(architecture) + '\n') != std::string::npos;
  };
  if (asked("gfx942") || asked("sm_86")) std::abort();
  if (asked("gfx1100") || asked("sm_87")) {
    for (;;) pause();
  }
  if (asked("gfx90a") || asked("sm_89")) {
    program.log = "stub.hip(2): error: no such thing\n";
    return kCompilationError;
  }
  program.image = "options:\n" + all + "headers:\n" + program.headers + "source:\n" + program.source;
  program.log =
      "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
      "    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads\n"
      "ptxas info    : Used 77 registers, 1024 bytes smem\n";
  return kDone;
}

int version(int* major, int* minor) {
  const char* text = std::getenv("FAKE_RUNTIME_COMPILER_VERSION");
  return std::sscanf(text ? text : "12.3", "%d.%d", major, minor) == 2 ? kDone : 1;
}

int create(Program** program, const char* source, int count, const char* const* names) {
  *program = new Program{source, {}, {}, {}};
  for (int i = 0; i < count; ++i) (*program)->headers += std::string(names[i]) + '\n';
  return kDone;
}

int copy_out(const std::string& from, char* to) {
  std::memcpy(to, from.data(), from.size());
  return kDone;
}

int copy_log(const std::string& log, char* to) {
  std::memcpy(to, log.c_str(), log.size() + 1);
  return kDone;
}

const char* error_text(int error) { return error == kCompilationError ? "FAKE_ERROR_COMPILATION" : "FAKE_ERROR"; }

}  // namespace

#define FAKE_INTERFACE(prefix, binary)                                                                          \
  extern "C" int prefix##Version(int* major, int* minor) { return version(major, minor); }                      \
  extern "C" const char* prefix##GetErrorString(int error) { return error_text(error); }                        \
  extern "C" int prefix##CreateProgram(Program** program, const char* source, const char*, int count,           \
                                       const char* const*, const char* const* names) {                          \
    return create(program, source, count, names);                                                               \
  }                                                                                                             \
  extern "C" int prefix##CompileProgram(Program* program, int count, const char* const* options) {              \
    return compile(*program, count, options);                                                                   \
  }                                                                                                             \
  extern "C" int prefix##GetProgramLogSize(Program* program, std::size_t* size) {                               \
    *size = program->log.size() + 1;                                                                            \
    return kDone;                                                                                               \
  }                                                                                                             \
  extern "C" int prefix##GetProgramLog(Program* program, char* log) { return copy_log(program->log, log); }     \
  extern "C" int prefix##Get##binary##Size(Program* program, std::size_t* size) {                               \
    *size = program->image.size();                                                                              \
    return kDone;                                                                                               \
  }                                                                                                             \
  extern "C" int prefix##Get##binary(Program* program, char* image) { return copy_out(program->image, image); } \
  extern "C" int prefix##DestroyProgram(Program** program) {                                                    \
    delete *program;                                                                                            \
    return kDone;                                                                                               \
  }

FAKE_INTERFACE(nvrtc, CUBIN)
FAKE_INTERFACE(hiprtc, Code)
