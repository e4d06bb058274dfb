// The subcommands. Each adds its options to the program and, when chosen, does its work in a
// callback that returns by throwing nothing, tilewise::Error, or Failure.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace tilewise::tools {

/// Thrown after a subcommand has told on standard output or error that its task failed: exit status 1.
struct Failure {};

void add_doctor(CLI::App& program);
void add_explain(CLI::App& program);
void add_run(CLI::App& program);
void add_verify(CLI::App& program);
void add_bench(CLI::App& program);
void add_tune(CLI::App& program);
void add_cache(CLI::App& program);
void add_compile(CLI::App& program);
void add_completion(CLI::App& program);
void add_manual(CLI::App& program);

}  // namespace tilewise::tools
