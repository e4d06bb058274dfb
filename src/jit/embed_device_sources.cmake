# Writes a .cpp that holds every device header as text. Run as a script, with OUTPUT, ROOT (the folder that includes are
# rooted at) and HEADERS (paths below it, separated by |). Comments stay behind: they are a third of what the headers
# add to a wheel, and a kernel whose comments changed is the same one. Lines keep their numbers.
string(REPLACE "|" ";" headers "${HEADERS}")
set(rows "")
foreach(header IN LISTS headers)
  file(READ "${ROOT}/${header}" text)
  if(text MATCHES "\"[^\"\n]*//")
    message(FATAL_ERROR "${header}: no literal may hold what begins a comment (got ${CMAKE_MATCH_0})")
  endif()
  string(REGEX REPLACE " *//[^\n]*" "" text "${text}")
  # A compiler may limit the length of one literal (65536 characters is what the standard asks for); neighbours join.
  set(literals "")
  string(LENGTH "${text}" length)
  set(start 0)
  while(start LESS length)
    string(SUBSTRING "${text}" ${start} 16000 part)
    string(APPEND literals "R\"tilewise(${part})tilewise\"\n")
    math(EXPR start "${start} + 16000")
  endwhile()
  string(APPEND rows "    {\"${header}\", ${literals}\"\"sv},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from the headers under src/device. Do not edit.
#include \"jit/device_sources.hpp\"

namespace tilewise::jit {
namespace {

using namespace std::string_view_literals;  // which bring their lengths: counted, they pass clang's limit of steps

constexpr DeviceSource kSources[] = {
${rows}};

}  // namespace

std::span<const DeviceSource> device_sources() { return kSources; }

}  // namespace tilewise::jit
")
