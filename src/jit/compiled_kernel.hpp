// What comes out of a compiler, a bundle or the cache: machine code and what it costs to run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tilewise::jit {

/// Read from the compiler's log (NVIDIA) or the code object's metadata (AMD); all 0 for the host.
struct KernelResources {
  int registers = 0;               ///< for each lane (AMD: vector registers without the accumulation registers)
  int accumulation_registers = 0;  ///< for each lane; AMD's CDNA, else 0
  int static_shared_bytes = 0;     ///< for each block, without what the launch adds
  int spill_bytes = 0;             ///< stored by each lane because registers ran out
  int scratch_bytes = 0;           ///< of each lane: stack, spills included
  int max_threads = 0;             ///< of a block (launch bounds); 0: not declared

  bool operator==(const KernelResources&) const = default;
};

struct CompiledKernel {
  std::vector<std::byte> image;  ///< cubin, code object or (host) shared object
  std::string symbol;
  KernelResources resources;
  std::string compiler;        ///< "nvrtc 13.0", "clang 22.1"
  std::string log;             ///< what the compiler said
  double compile_seconds = 0;  ///< 0 where the kernel came from the cache or a bundle
};

}  // namespace tilewise::jit
