// XLA's interface for foreign functions as far as handlers use it. Like a driver's it is declared here, so that neither
// building nor a wheel needs JAX, and one binary serves every JAX: XLA adds to these structs at their ends only, or
// counts its major version up. tests/python/test_jax_interface.py compares layouts with the headers that JAX ships.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise::python::xla {

inline constexpr int kMajorVersion = 0;
inline constexpr int kKnownMinorVersion = 4;  // what is here is the same from 0.1 on

struct Context;
struct Error;  // an allocated message; whoever gets one frees it

/// A list that XLA appends to a frame to ask what its handler is.
struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major_version;
  int minor_version;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
  std::int64_t state_type;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class ErrorCode : int {
  cancelled = 1,
  invalid_argument = 3,
  unimplemented = 12,
  internal = 13,
};

struct ErrorCreateArguments {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct StreamArguments {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};

struct OrdinalArguments {
  std::size_t struct_size;
  Extension* extensions;
  Context* context;
  std::int32_t ordinal;  // out
};

using OtherFunction = void (*)();

/// XLA's functions. Those that are not called keep the places of the others.
struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorCreateArguments* arguments);
  OtherFunction error_message;
  OtherFunction destroy_error;
  OtherFunction register_handler;
  Error* (*get_stream)(StreamArguments* arguments);
  OtherFunction register_type;
  OtherFunction get_context;
  OtherFunction set_state;
  OtherFunction get_state;
  OtherFunction allocate;
  OtherFunction free;
  OtherFunction schedule;
  OtherFunction num_threads;
  OtherFunction create_future;
  OtherFunction set_future;
  OtherFunction fail_future;
  OtherFunction get_run;
  Error* (*get_device_ordinal)(OrdinalArguments* arguments);
};

/// XLA's numbers of the element types that Tilewise has, and of the words that a seed comes in.
enum class ElementType : int {
  boolean = 1,
  i32 = 4,
  i64 = 5,
  u8 = 6,
  u32 = 8,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
  f8e4m3fn = 20,
  f8e8m0fnu = 33,
};

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  ElementType type;
  void* data;
  std::int64_t rank;
  std::int64_t* sizes;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  ElementType type;
  void* value;
};

inline constexpr int kScalarAttribute = 3;
inline constexpr int kTextAttribute = 4;

/// Of arguments and of results: buffers one and all.
struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  Buffer** buffers;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  Text** names;
  void** values;
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace tilewise::python::xla
