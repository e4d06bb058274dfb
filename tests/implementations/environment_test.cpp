// What surrounds a call: the caller's floating-point mode, tensors that span more than 2^31
// elements, and a process that has forked.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <new>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"
#include "verify/call_tensors.hpp"
#include "verify/compare.hpp"

namespace tilewise::test {
namespace {

using verify::CallTensors;
using verify::Output;

class Environment : public ImplementationTest {
 protected:
  [[nodiscard]] std::vector<Output> run(const CallTensors& tensors) const {
    std::vector<Output> outputs = tensors.make_outputs(1);
    tensors.run(tensors.plan(GetParam(), outputs), outputs);
    return outputs;
  }
};

#if defined(__SSE__)
/// The control register of the calling thread, for a scope.
class ControlRegister {
 public:
  explicit ControlRegister(unsigned value) : saved_(_mm_getcsr()) { _mm_setcsr(value); }
  ~ControlRegister() { _mm_setcsr(saved_); }
  ControlRegister(const ControlRegister&) = delete;
  ControlRegister& operator=(const ControlRegister&) = delete;

 private:
  unsigned saved_;
};

TEST_P(Environment, TheCallersFloatingPointModeChangesNothing) {
  constexpr unsigned kMasked = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kTowardZero = 0x6000;
  for (const char* text : {"attention_forward batch_size=2 seqlen_q=90 num_heads_q=4 head_dim=64 mask=causal",
                           "attention_forward seqlen_q=1 seqlen_k=2500 num_heads_q=4 head_dim=64",
                           "attention_backward batch_size=2 seqlen_q=90 num_heads_q=4 head_dim=64 sink=1 dsink=1 "
                           "bias=f32[1,h,q,k] dbias=1 deterministic=1"}) {
    Problem problem = parse_problem(text);
    problem.dtype = dtypes().front();
    const CallTensors tensors(problem, 9);
    for (const int threads : {1, 2}) {
      set_num_threads(threads);
      const std::vector<Output> expected = run(tensors);
      for (const unsigned mode : {kFlushToZero | kDenormalsAreZero, kTowardZero, kTowardZero | kFlushToZero}) {
        const ControlRegister scope(kMasked | mode);
        const std::vector<Output> outputs = run(tensors);
        EXPECT_EQ(_mm_getcsr() & ~0x3Fu, kMasked | (mode & ~0x3Fu)) << "the caller's mode was not restored";
        for (std::size_t i = 0; i < outputs.size(); ++i)
          EXPECT_EQ(verify::find_bit_difference(outputs[i], expected[i]), "") << "mode " << mode << "; " << text;
      }
    }
  }
}
#endif

/// Address space that costs memory only where touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (ok()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  [[nodiscard]] bool ok() const { return data_ != MAP_FAILED; }
  [[nodiscard]] void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// A copy of `from` whose axis `far` has a stride just above 2^31 elements.
class FarTensor {
 public:
  FarTensor(const Tensor& from, std::size_t far) : view_(from.view()) {
    constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 24;
    view_.strides[far] = kFar;
    const auto elements = static_cast<std::size_t>(kFar * (view_.shape[far] - 1) + from.size() + 1);
    memory_ = std::make_unique<SparseMemory>(elements * size_of(view_.dtype));
    view_.data = memory_->data();
    if (!memory_->ok()) return;
    verify::for_each_element(view_, [&](std::span<const std::int64_t> p, std::int64_t offset) {
      verify::store_at(view_, offset, verify::value_at(from.view(), verify::offset_of(from.view(), p)));
    });
  }
  [[nodiscard]] bool ok() const { return memory_->ok(); }
  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] bool equals(const Tensor& other) const {
    bool same = true;
    verify::for_each_element(view_, [&](std::span<const std::int64_t> p, std::int64_t offset) {
      same &= verify::bits_at(view_, offset) == verify::bits_at(other.view(), verify::offset_of(other.view(), p));
    });
    return same;
  }

 private:
  TensorView view_;
  std::unique_ptr<SparseMemory> memory_;
};

TEST_P(Environment, ElementOffsetsBeyondTwoToThe31) {
  for (const DType dtype : dtypes()) {
    for (const std::size_t far : {0u, 1u, 2u}) {  // batch, sequence, head
      DenseCall call({.batch = 2,
                      .seqlen_q = 4,
                      .seqlen_k = 3,
                      .heads_q = 2,
                      .heads_k = 2,
                      .dim = 16,
                      .dim_v = 16,
                      .dtype = dtype});
      call.prepare_backward(true);
      call.bias = call.normal(DType::f32, {2, 2, 4, 3});
      call.dbias = Tensor(DType::f32, {2, 2, 4, 3});
      call.forward(GetParam());
      call.backward(GetParam());

      const std::size_t far_lse = far == 0 ? 0 : far == 1 ? 2 : 1;
      FarTensor q(call.q, far), k(call.k, far), v(call.v, far), dout(call.dout, far), dlse(call.dlse, far_lse);
      FarTensor bias(call.bias, far + 1);  // head, query, key
      Tensor empty_out(dtype, {2, 4, 2, 16}), empty_k(dtype, {2, 3, 2, 16}), empty_lse(call.statistics(), {2, 2, 4});
      FarTensor out(empty_out, far), lse(empty_lse, far_lse), dq(empty_out, far), dk(empty_k, far), dv(empty_k, far);
      FarTensor dbias(Tensor(DType::f32, {2, 2, 4, 3}), far + 1);
      for (const FarTensor* t : {&q, &k, &v, &dout, &dlse, &bias, &out, &lse, &dq, &dk, &dv, &dbias})
        if (!t->ok()) GTEST_SKIP() << "the system does not lend that much address space";

      AttentionOptions options;
      options.bias = bias.view();
      attention_forward({q.view(), k.view(), v.view(), out.view(), lse.view(), options}, {GetParam()});
      EXPECT_TRUE(out.equals(call.out)) << "axis " << far;
      EXPECT_TRUE(lse.equals(call.lse)) << "axis " << far;
      BackwardArguments a;
      a.dout = dout.view(), a.dlse = dlse.view(), a.q = q.view(), a.k = k.view(), a.v = v.view();
      a.out = out.view(), a.softmax_lse = lse.view();
      a.dq = dq.view(), a.dk = dk.view(), a.dv = dv.view(), a.dbias = dbias.view();
      a.options = options;
      attention_backward(a, {GetParam()});
      EXPECT_TRUE(dq.equals(call.dq)) << "axis " << far;
      EXPECT_TRUE(dk.equals(call.dk)) << "axis " << far;
      EXPECT_TRUE(dv.equals(call.dv)) << "axis " << far;
      EXPECT_TRUE(dbias.equals(call.dbias)) << "axis " << far;
    }
  }
}

TEST_P(Environment, AForkedChildComputes) {
  Problem problem = parse_problem("attention_forward batch_size=2 seqlen_q=200 num_heads_q=4 head_dim=64");
  problem.dtype = dtypes().front();
  const CallTensors tensors(problem, 9);
  set_num_threads(2);
  const std::vector<Output> expected = run(tensors);  // the parent's pool is running
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a child that waits for its parent's threads would never end
    const std::vector<Output> outputs = run(tensors);
    const bool same = verify::find_bit_difference(outputs[0], expected[0]).empty();
    _exit(same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the child ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const std::vector<Output> again = run(tensors);
  EXPECT_EQ(verify::find_bit_difference(again[0], expected[0]), "");
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(Environment);

}  // namespace
}  // namespace tilewise::test
