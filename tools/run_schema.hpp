// `tilewise run` for an operation by its schema: a flag for each tensor, named after it, with a file, or a list of
// files for a list of tensors; and a flag for each field that its calls state. Flags that the command has already are
// shared.
#pragma once

#include <algorithm>
#include <array>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "array.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "core/packed.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/outputs.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/derived/stored.hpp"
#include "option_checks.hpp"
#include "run_files.hpp"

namespace tilewise::tools {

/// What every operation of the command has.
struct CommonOptions {
  std::vector<std::string> problem_words;
  std::string implementation;
  int threads = 0;
};

/// What was given for a flag, in words.
[[nodiscard]] inline std::vector<std::string> words_of(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option == nullptr ? std::vector<std::string>{} : option->results();
}

/// An operation of the command, which one of its flags chooses.
class OperationRun {
 public:
  OperationRun() = default;
  virtual ~OperationRun() = default;
  OperationRun(const OperationRun&) = delete;
  OperationRun& operator=(const OperationRun&) = delete;

  [[nodiscard]] virtual bool is_chosen() const = 0;
  /// The flag that does it.
  [[nodiscard]] virtual const std::string& chooser() const = 0;
  /// Throws for flags that belong to this operation alone.
  virtual void refuse_own() const = 0;
  /// Throws Error.
  virtual void run(const CommonOptions& common) const = 0;
};

template <typename Op>
class SchemaRun final : public OperationRun {
 public:
  using Problem = typename Op::Problem;
  using Tensor = operations::schema::Tensor<Problem>;
  using Role = operations::schema::Role<Op::kSchema>;
  static constexpr const auto& kTensors = operations::schema::kTensors<Op::kSchema>;
  static constexpr const auto& kRoles = operations::schema::kRoles<Op::kSchema>;

  /// `chooser` is the role whose flag says that the command is to run this operation.
  SchemaRun(CLI::App& command, Role chooser, const std::string& group)
      : command_(command), with_(flag(kTensors[chooser.place])) {
    for (const Tensor& tensor : kTensors) {
      if (command.get_option_no_throw(flag(tensor)) != nullptr) continue;
      const std::string help(tensor.summary);
      CLI::Option* option = command.add_option(flag(tensor), help)->group(group);
      if (tensor.is_list()) {
        option->delimiter(',')->expected(1, -1)->allow_extra_args(false)->type_name("FILE.npy,...");
      } else {
        option->type_name("FILE.npy");
      }
      own_.push_back(option);
    }
    const auto add_stated = [&](const auto& field) {
      if constexpr (operations::schema::kLengthOf<decltype(field.members)> > 0) {
        if (command.get_option_no_throw(flag_of(field.key)) != nullptr) return;
        const std::string help = core::concat(field.key, " of the problem");
        own_.push_back(command.add_option(flag_of(field.key), help)->type_name("WORD")->group(group));
      }
    };
    operations::schema::apply([&](const auto&... fields) { (add_stated(fields), ...); }, Op::kSchema.fields);
    for_each_size([&](const Dimension& dimension) {
      if (command.get_option_no_throw(flag_of(dimension.name)) != nullptr) return;
      const std::string help = core::concat(dimension.name, " of the outputs, where PROBLEM is not given");
      own_.push_back(command.add_option(flag_of(dimension.name), help)->type_name("INTEGER")->group(group));
    });
  }

  [[nodiscard]] bool is_chosen() const override { return !words_of(command_, with_).empty(); }
  [[nodiscard]] const std::string& chooser() const override { return with_; }
  void refuse_own() const override {
    for (const CLI::Option* option : own_)
      if (option->count() > 0) core::invalid_argument(option->get_name(), ": needs ", with_, " (got none)");
  }

  void run(const CommonOptions& common) const override {
    refuse_others();
    set_num_threads(common.threads);
    std::optional<Problem> stated;
    if (!common.problem_words.empty())
      stated = parse_problem(single_problem(common.problem_words)).template get<Problem>();
    Files files{std::vector<std::vector<Array>>(kTensors.size()), Results(with_)};
    for (std::size_t place = 0; place < kTensors.size(); ++place)
      if (kTensors[place].access == core::Access::read) read(files, place);
    run_each(common, stated, files, std::make_index_sequence<Op::Schema::kCalls>());
    files.results.write();
  }

 private:
  using Dimension = operations::schema::Dimension<Problem>;

  /// Inputs as they were read, and outputs once they are made.
  struct Files {
    std::vector<std::vector<Array>> arrays;
    Results results;
  };

  static std::string flag(const Tensor& tensor) { return flag_of(tensor.flag.empty() ? tensor.name : tensor.flag); }
  [[nodiscard]] std::vector<std::string> words(std::size_t place) const {
    return words_of(command_, flag(kTensors[place]));
  }

  void read(Files& files, std::size_t place) const {
    for (const std::string& name : words(place))
      files.arrays[place].push_back(read_named(flag(kTensors[place]), name, with_));
  }
  [[nodiscard]] static const Dimension& dimension_of(const operations::schema::OutputChoice& choice) {
    return *kTensors[choice.place].dimensions.of[static_cast<std::size_t>(choice.dimension)];
  }
  /// Calls visit(dimension) for those of outputs that no input of their calls has.
  template <typename Visit>
  static void for_each_size(const Visit& visit) {
    Op::Schema::for_each_call([&visit]<typename Arguments> {
      for (const auto& choice : operations::schema::output_choices<Op::kSchema, Arguments>())
        if (choice.dimension >= 0) visit(dimension_of(choice));
    });
  }

  /// Whatever the command was given for another operation.
  void refuse_others() const {
    std::vector<std::string> known{"PROBLEM", "--implementation", "--threads", "--help"};
    for (const Tensor& tensor : kTensors) known.push_back(flag(tensor));
    const auto add_stated = [&known](const auto& field) {
      if constexpr (operations::schema::kLengthOf<decltype(field.members)> > 0) known.push_back(flag_of(field.key));
    };
    operations::schema::apply([&](const auto&... fields) { (add_stated(fields), ...); }, Op::kSchema.fields);
    for_each_size([&known](const Dimension& dimension) { known.push_back(flag_of(dimension.name)); });
    for (const CLI::Option* option : command_.get_options()) {
      if (option->count() == 0 || std::ranges::count(known, option->get_name()) > 0) continue;
      core::invalid_argument(with_, ": excludes ", option->get_name(), " (got both)");
    }
  }

  template <std::size_t... calls>
  void run_each(const CommonOptions& common, const std::optional<Problem>& stated, Files& files,
                std::index_sequence<calls...>) const {
    std::array<bool, sizeof...(calls)> wanted{is_wanted(calls)...};
    if (std::ranges::count(wanted, true) == 0) files.results.check_wanted();
    const bool one = std::ranges::count(wanted, true) == 1;
    for (std::size_t place = 0; place < kTensors.size(); ++place)
      if (kTensors[place].read_later && !wanted[0]) read(files, place);
    const auto run_one = [&]<std::size_t call> {
      if (!wanted[call]) return;
      Problem kind;
      Op::select_name(kind, call);
      Op::Schema::with_arguments(kind, [&]<typename Arguments> {
        run_call<Arguments>(common, stated, stated && (one || Op::problem_name(*stated) == call), files);
      });
    };
    (run_one.template operator()<calls>(), ...);
  }

  /// Whether a file is named for an output of such calls; throws where one is, or an input that they alone have, and
  /// the tensor that they begin with is not.
  [[nodiscard]] bool is_wanted(std::size_t call) const {
    const std::size_t anchor = operations::schema::kAnchors<Op::kSchema>[call];
    const bool begun = kTensors[anchor].access_in(call) != core::Access::read || !words(anchor).empty();
    bool wanted = false;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (!kRoles[call][place] || words(place).empty()) continue;
      // What a later kind of call reads may be an input, but beside what this one alone begins with.
      const bool written = kTensors[place].access_in(call) != core::Access::read;
      if (is_shared(place) && !(written && begun && !is_shared(anchor))) continue;
      if (!begun) core::invalid_argument(flag(kTensors[place]), ": needs ", flag(kTensors[anchor]), " (got none)");
      wanted |= written;
    }
    return wanted;
  }
  /// Whether several kinds of call have a tensor.
  [[nodiscard]] static bool is_shared(std::size_t place) {
    return std::ranges::count_if(kRoles, [place](const auto& roles) { return roles[place]; }) > 1;
  }

  template <typename Arguments>
  void run_call(const CommonOptions& common, const std::optional<Problem>& stated, bool must_agree,
                Files& files) const {
    Arguments arguments = stated_arguments<Arguments>(stated);
    fill(arguments, files, core::Access::read);
    make_defaults(arguments, stated, files);
    const Problem described = Op::describe(typename Op::Call(arguments));
    make_wanted(described, files);
    fill(arguments, files, core::Access::write);
    const Problem problem = describe(arguments);
    if (must_agree) check_stated(*stated, problem);
    const Plan planned = plan(problem, {common.implementation});
    print_plan(std::cout, planned);
    tilewise::run(planned, arguments);
  }

  /// The fields that calls state: the problem's, or those of flags.
  template <typename Arguments>
  [[nodiscard]] Arguments stated_arguments(const std::optional<Problem>& stated) const {
    Arguments arguments;
    const auto state = [&](const auto& field) {
      const auto member = operations::schema::member_in<Arguments>(field.members);
      if constexpr (operations::schema::kLengthOf<decltype(member)> > 0) {
        auto& value = arguments.*operations::schema::get<0>(member);
        if (stated) value = (*stated).*field.value;
        using core::read_word;
        if (const auto given = words_of(command_, flag_of(field.key)); !given.empty()) {
          constexpr std::string_view kFlag = "true";  // one of another operation, that takes no value
          if (std::is_same_v<decltype(value), bool&> && given.front() == kFlag)
            read_word(flag_of(field.key), "1", value);
          else
            read_word(flag_of(field.key), given.front(), value);
        }
      }
    };
    operations::schema::apply([&](const auto&... fields) { (state(fields), ...); }, Op::kSchema.fields);
    return arguments;
  }

  /// .npy files have no narrow floating-point numbers, but their bytes.
  template <typename Arguments>
  static void fill(Arguments& arguments, const Files& files, core::Access access) {
    const Problem stated = typename Op::Call(arguments).stated();
    operations::schema::for_each_member<Op::kSchema>(arguments, [&](std::size_t place, auto& entries) {
      if (kTensors[place].access_in(operations::schema::call_index<Arguments>(Op::kSchema)) != access) return;
      const std::vector<Array>& arrays = files.arrays[place];
      if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
        entries = arrays.empty() ? TensorView{}
                                 : operations::schema::as_stored(arrays.front().view(), kTensors[place], stated);
      } else {
        entries.clear();
        for (const Array& array : arrays)
          entries.push_back(operations::schema::as_stored(array.view(), kTensors[place], stated));
      }
    });
  }

  /// The other way.
  static TensorView stored(TensorView view) {
    if (core::is_packed(view.dtype)) return core::bytes_of(view);
    if (bits_of(view.dtype) == 8 && view.dtype != DType::boolean) view.dtype = DType::u8;
    return view;
  }

  /// Outputs that a call can't be described without, in the dtype of a stated problem: like an input, or as the inputs
  /// describe them.
  template <typename Arguments>
  void make_defaults(Arguments& arguments, const std::optional<Problem>& stated, Files& files) const {
    const typename Op::Call call(arguments);
    const bool stacked = call.stacked();
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      const Tensor& tensor = kTensors[place];
      if (!call.has(place) || tensor.access_in(call.index()) == core::Access::read || tensor.optional) continue;
      if (tensor.made_like.empty()) {
        constexpr auto kChoices = operations::schema::output_choices<Op::kSchema, Arguments>();
        const operations::schema::OutputPlanner<Op::kSchema> planner(
            call, std::span(kChoices).first(operations::schema::count_of(kChoices)), chosen_sizes(kChoices, stated));
        if (planner.count(place) == 0) continue;
        const operations::schema::PlannedOutput planned = planner.plan(place, 0);
        const DType dtype = stated && tensor.dtype != nullptr ? (*stated).*tensor.dtype : planned.dtype;
        add(files, place, Array(dtype, operations::schema::sizes_of(planned.shape), tensor.name));
        continue;
      }
      const TensorView like = call.one_at(Role::place_of(tensor.made_like));
      const DType dtype = stated ? (*stated).*tensor.dtype : like.dtype;
      add(files, place, Array(dtype, shape_of(like).subspan(stacked ? 1 : 0), tensor.name));
    }
    fill(arguments, files, core::Access::write);
  }

  /// The outputs that files are named for.
  void make_wanted(const Problem& problem, Files& files) const {
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      const Tensor& tensor = kTensors[place];
      const std::vector<std::string> names = words(place);
      const std::size_t call = Op::problem_name(problem);
      if (tensor.access_in(call) == core::Access::read || !kRoles[call][place]) continue;
      if (names.empty() || !files.arrays[place].empty()) continue;
      if (tensor.like.empty()) {
        add(files, place,
            Array(operations::schema::dtype_of<Op::kSchema>(tensor, problem),
                  operations::schema::sizes_of(operations::schema::shape_of(tensor, problem)), tensor.name));
        continue;
      }
      const std::size_t model = Role::place_of(tensor.like);
      const std::vector<Array>& like = files.arrays[model];
      if (like.empty()) core::invalid_argument(flag(tensor), ": needs ", flag(kTensors[model]), " (got none)");
      if (names.size() != like.size()) {
        core::invalid_argument(flag(tensor), ": must name as many files as ", flag(kTensors[model]), ", ", like.size(),
                               " (got ", names.size(), ")");
      }
      for (const Array& array : like) add(files, place, zeros_like(array.view(), tensor.name));
    }
  }
  /// Of flags, or of a stated problem.
  template <std::size_t count>
  [[nodiscard]] operations::schema::ChosenOutputs chosen_sizes(
      const std::array<operations::schema::OutputChoice, count>& choices, const std::optional<Problem>& stated) const {
    operations::schema::ChosenOutputs chosen;
    for (std::size_t i = 0; i < operations::schema::count_of(choices); ++i) {
      if (choices[i].dimension < 0) continue;
      const Dimension& dimension = dimension_of(choices[i]);
      const std::string name = flag_of(dimension.name);
      const auto given = words_of(command_, name);
      if (given.empty() && !stated)
        core::invalid_argument(with_, ": needs ", name, ", or a problem that says it (got neither)");
      if (stated) chosen.sizes[i] = (*stated).*dimension.size;
      if (!given.empty()) core::read_word(name, given.front(), chosen.sizes[i]);
      if (chosen.sizes[i] < dimension.least)
        core::invalid_argument(name, ": must be >= ", dimension.least, " (got ", chosen.sizes[i], ")");
    }
    return chosen;
  }
  void add(Files& files, std::size_t place, Array array) const {
    const std::vector<std::string> names = words(place);
    std::vector<Array>& arrays = files.arrays[place];
    if (arrays.size() < names.size())
      files.results.add(flag(kTensors[place]), names[arrays.size()], stored(array.view()));
    arrays.push_back(std::move(array));
  }

  /// A problem text must say what the arrays say; which results are wanted is the files' business.
  static void check_stated(Problem stated, const Problem& described) {
    for (const Tensor& tensor : kTensors)
      if (tensor.access != core::Access::read && tensor.given != nullptr)
        stated.*tensor.given = described.*tensor.given;
    check_agrees(stated, described, "the files");
  }

  const CLI::App& command_;
  std::string with_;
  std::vector<const CLI::Option*> own_;
};

}  // namespace tilewise::tools
