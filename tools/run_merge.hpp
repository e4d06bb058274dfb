// `tilewise run --outs`: merging partial results in .npy files, and its gradients.
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tilewise/merge.hpp"

namespace tilewise::tools {

/// Lists of files, one a part; or one file of a stacked array.
struct MergeFiles {
  std::vector<std::string> outs, lses;    ///< read
  std::vector<std::string> douts, dlses;  ///< written
};

/// Adds the options that merging alone has.
void add_merge_files(CLI::App& command, MergeFiles& files);

/// A call: the files of options that attention has too are empty where not given.
struct MergeRun {
  const MergeFiles& parts;
  const std::string &sink, &dout, &dlse;  ///< read
  const std::string &out, &lse, &dsink;   ///< written
  const std::vector<std::string>& problem_words;
  std::string layout, implementation;
  int threads = 0;
};

/// Throws Error.
void run_merge(const MergeRun& run);

}  // namespace tilewise::tools
