// The tensors of src/device/common, member by member, as parameter blocks of several operations have them.
#pragma once

#include "device/common/tensors.h"
#include "gpu/parameters.hpp"

#define TILEWISE_TENSOR4(X) X(data), X(batch_stride), X(seq_stride), X(head_stride)
#define TILEWISE_LSE_TENSOR(X) X(data), X(batch_stride), X(head_stride), X(seq_stride)
#define TILEWISE_BIAS_TENSOR(X) X(data), X(batch_stride), X(head_stride), X(query_stride), X(key_stride)
#define TILEWISE_SINK_TENSOR(X) X(data), X(stride), X(type), X(unused)

TILEWISE_DESCRIBE(tilewise::device::Tensor4, TILEWISE_TENSOR4);
TILEWISE_DESCRIBE(tilewise::device::LseTensor, TILEWISE_LSE_TENSOR);
TILEWISE_DESCRIBE(tilewise::device::BiasTensor, TILEWISE_BIAS_TENSOR);
TILEWISE_DESCRIBE(tilewise::device::SinkTensor, TILEWISE_SINK_TENSOR);
