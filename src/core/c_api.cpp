// The C interface: errors, plans of any operation, problem texts and threads.
#include "core/c_api.hpp"

#include <cstdlib>
#include <cstring>

namespace tilewise::core::c {

static_assert(TILEWISE_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
static_assert(TILEWISE_INVALID_TYPE == static_cast<int>(ErrorCode::invalid_type));
static_assert(TILEWISE_UNSUPPORTED == static_cast<int>(ErrorCode::unsupported));
static_assert(TILEWISE_RUNTIME_ERROR == static_cast<int>(ErrorCode::runtime));

std::string& last_error() {
  thread_local std::string sentence;
  return sentence;
}

tilewise_status failed(tilewise_status status, const char* sentence) noexcept {
  try {
    last_error() = sentence;
  } catch (...) {
    last_error().clear();  // not even memory for the sentence: the status must do
  }
  return status;
}

char* text_for_caller(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

std::vector<TensorView> views_of(const DLTensor* const* tensors, std::size_t count, std::string_view name) {
  std::vector<TensorView> views;
  if (count > 0) required(tensors, name);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string entry = concat(name, "[", n, "]");
    views.push_back(from_dlpack(*required(tensors[n], entry), entry));
  }
  return views;
}

}  // namespace tilewise::core::c

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;

tilewise_status tilewise_plan_problem(const char* problem, const char* implementation, tilewise_plan** result) {
  return guarded([&] {
    required(result, "plan");
    *result = new tilewise_plan{plan(parse_problem(required(problem, "problem")), select_of(implementation))};
  });
}

tilewise_status tilewise_plan_workspace_size(const tilewise_plan* plan, size_t* size) {
  return guarded([&] { *required(size, "size") = required(plan, "plan")->plan.workspace_size(); });
}

tilewise_status tilewise_plan_implementation(const tilewise_plan* plan, const char** name) {
  // Implementations name themselves with string literals, which end in a null.
  return guarded([&] { *required(name, "name") = required(plan, "plan")->plan.implementation().data(); });
}

void tilewise_plan_destroy(tilewise_plan* plan) { delete plan; }

tilewise_status tilewise_parse_problem(const char* problem, char** normal_form) {
  return guarded([&] {
    required(normal_form, "normal_form");
    *normal_form = text_for_caller(to_string(parse_problem(required(problem, "problem"))));
  });
}

tilewise_status tilewise_explain(const char* problem, const char* implementation, char** table) {
  return guarded([&] {
    required(table, "table");
    *table =
        text_for_caller(explain(parse_problem(required(problem, "problem")), select_of(implementation)).to_string());
  });
}

void tilewise_free_text(char* text) { std::free(text); }

tilewise_status tilewise_set_num_threads(int num_threads) {
  return guarded([&] { set_num_threads(num_threads); });
}

tilewise_status tilewise_get_num_threads(int* num_threads) {
  return guarded([&] { *required(num_threads, "num_threads") = get_num_threads(); });
}

const char* tilewise_last_error(void) { return last_error().c_str(); }

const char* tilewise_version(void) {
  return version().data();  // a literal: it ends in a zero
}
