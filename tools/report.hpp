// `tilewise verify --report`: the table of features on whatever GPU is here.
#pragma once

namespace tilewise::tools {

/// Checks every feature, forward and backward, on the GPUs' implementations, each row in a process of its own, and
/// prints PASS, FAIL, CRASH or REFUSED. Returns whether there was a GPU and the table is good (report_rows.hpp).
[[nodiscard]] bool print_feature_report();

}  // namespace tilewise::tools
