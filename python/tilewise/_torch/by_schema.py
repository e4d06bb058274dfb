# The torch operators of operations that are stated by a schema, NAME, NAME_out and NAME_backward: what follows from
# the description that the core gives of each. Their kernels in C++ are python/src/torch_by_schema.hpp's.
"""Fake kernels, kernels in Python and autograd by schema, and calls of all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from tilewise import _calls, _core, _log
from tilewise._torch import autocast, autograd, operators, private
from tilewise._torch.dtypes import CORE_DTYPES, TORCH_DTYPES
from tilewise._torch.errors import raise_known
from tilewise._torch.formulas import FORMULAS
from tilewise._torch.operators import LIBRARY
from tilewise._torch.packed import Packed
from tilewise._torch.private import are_transforms_active as transforming
from tilewise._torch.private import forward_ad
from tilewise._torch.python_kernels import borrow, stream_of
from tilewise._torch.refusals import has_tangents, refuse_gradient, refuse_tangents

Given = dict[str, Any]  # arguments of an operator by name
Borrow = Callable[[str, Tensor], _core.Array]


def _flat(value: Any) -> tuple[Tensor, ...]:
    """The tensors of an argument: none, one, or a list."""
    return () if value is None else (value,) if isinstance(value, Tensor) else tuple(value)


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of an argument, as messages call them."""
    if isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", each) for i, each in enumerate(value))
    elif value is not None:
        yield name, value


def _all_named(given: Given, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield from _named(name, given.get(name))


class Operator:
    """One operator: a kind of call, with its outputs made or, where `into`, those that are always there given."""

    def __init__(self, kind: _calls.Call, into: bool = False) -> None:
        self.kind = kind
        self.name = kind.name + ("_out" if into else "")
        self.formula: Any = FORMULAS.get(kind.operation)
        self.given = [tensor for tensor in kind.outputs if into and not tensor.optional]
        self.made = [tensor for tensor in kind.outputs if tensor not in self.given]
        self.tensors = (*kind.inputs, *self.given)
        self.lists = {tensor.name for tensor in kind.inputs if tensor.list}
        self.fields = [field.name for field in kind.fields]
        self.handle: Any = getattr(torch.ops.tilewise, self.name).default
        arguments = self.handle._schema.arguments
        self.names = [argument.name for argument in arguments]
        self.required = [tensor.name for tensor in kind.inputs if not tensor.optional]
        self._defaults = {argument.name: argument.default_value for argument in arguments}
        self._firsts = [name for name in self.names if name == kind.anchor] + [tensor.name for tensor in kind.inputs]

    def bind(self, args: Iterable[Any], others: Optional[Given] = None) -> Given:
        """The arguments of a call by name; torch leaves those out that equal their defaults."""
        return {**self._defaults, **dict(zip(self.names, args)), **(others or {})}

    def first(self, given: Given) -> tuple[str, Tensor]:
        """The tensor where all others must be, and its name."""
        for each in _all_named(given, self._firsts):
            return each
        raise ValueError(f"{self.kind.inputs[0].name}: must hold at least one tensor (got none)")

    def _views(self, given: Given, take: Borrow) -> dict[str, Any]:
        views: dict[str, Any] = {field: given[field] for field in self.fields}
        for tensor in (*self.kind.inputs, *self.kind.outputs):
            seen = [take(name, value) for name, value in _named(tensor.name, given.get(tensor.name))]
            views[tensor.name] = seen if tensor.list else seen[0] if seen else None
        return views

    def planned(self, given: Given, take: Borrow) -> list[_core.Output]:
        return _calls.planned_outputs(self.kind.name, given, **self._views(given, take))

    def new_outputs(
        self, given: Given, planned: list[_core.Output], size_of: Callable[[_core.Output, int], Any]
    ) -> dict[str, Any]:
        """The outputs that the operator makes, None where one is not needed. size_of: the size of an axis."""
        _, first = self.first(given)
        made: dict[str, Any] = {tensor.name: [] for tensor in self.made}
        for output in planned:
            if output.name in made and given.get(f"need_{output.name}", True):
                shape = [size_of(output, axis) for axis in range(len(output.shape))]
                if output.dtype == _PACKED:
                    shape[-1] = (shape[-1] + 1) // 2
                made[output.name].append(first.new_empty(shape, dtype=TORCH_DTYPES.get(output.dtype, first.dtype)))
        for tensor in self.made:
            needed = given.get(f"need_{tensor.name}", True)
            if needed and not made[tensor.name]:
                if tensor.like:
                    raise ValueError(f"{tensor.name}: cannot be asked for without its input")
                needed = False  # calls like this one have none
            if not tensor.list:
                made[tensor.name] = made[tensor.name][0] if needed else None
        return made

    def returned(self, given: Given, made: dict[str, Any]) -> Any:
        """What the operator returns: [0] in place of a tensor that is not needed; nothing where all are given."""
        values = [self.first(given)[1].new_empty(0) if value is None else value for value in made.values()]
        return values[0] if len(values) == 1 else tuple(values) or None

    def fake(self, *args: Any, **others: Any) -> Any:
        given = self.bind(args, others)
        first_name, first = self.first(given)
        for name, value in _all_named(given, (tensor.name for tensor in self.tensors)):
            if value.device != first.device:
                raise TypeError(f"{name}: must be on {first.device}, where {first_name} is (got {value.device})")

        def size(output: _core.Output, axis: int) -> Any:
            source, source_axis = output.sources[axis]
            if source_axis < 0:
                return output.shape[axis]
            return _flat(given[source])[0].shape[source_axis] * of_ones[id(output)].shape[axis]

        planned = ones = self.planned(given, _without_memory)  # whose sizes are 1, but 2 where torch counts pairs
        if any(axis == _FOLLOWS for output in planned for _, axis in output.sources):
            planned = self.planned(given, functools.partial(_without_memory, with_sizes=True))
        of_ones = {id(output): one for output, one in zip(planned, ones)}
        return self.returned(given, self.new_outputs(given, planned, size))

    def kernel(self, *args: Any, **others: Any) -> Any:
        given = self.bind(args, others)
        made = self.new_outputs(given, self.planned(given, borrow), lambda output, axis: output.shape[axis])
        _, first = self.first(given)
        written = {tensor.name for tensor in self.kind.outputs}
        try:
            views = self._views(
                {**given, **made}, lambda name, value: borrow(name, value, name.split("[")[0] in written)
            )
            _calls.run(self.kind.name, given["implementation"], torch.get_num_threads(), stream_of(first), **views)
        except NotImplementedError:
            if self.formula is None or not first.is_cuda or given["implementation"] is not None:
                raise
            self.formula.write(given, {**{each.name: given[each.name] for each in self.given}, **made})
        return self.returned(given, made)


_PACKED = "fp4_e2m1"  # of which torch counts pairs


_FOLLOWS = -2  # among the sources of an output's sizes: it can only be computed


def _without_memory(name: str, tensor: Tensor, with_sizes: bool = False) -> _core.Array:
    """A tensor that is traced, as the core plans with it. Its sizes may be symbols, which `with_sizes` makes numbers:
    what is compiled serves those sizes alone."""
    shape = [int(size) if with_sizes else 1 for size in tensor.shape]
    dtype = CORE_DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    strides = [2] * (len(shape) - 1) + [1] * min(len(shape), 1)
    return _core.Array.without_memory(shape, strides, dtype, "cpu", 0, 64, name)


class Derivatives:
    """Autograd of an operation whose NAME_backward takes what it has of the forward call's inputs and outputs, and the
    gradients of outputs, and returns those of inputs."""

    def __init__(self, forward: Operator, backward: Operator) -> None:
        self.forward, self.backward = forward, backward
        outputs = {tensor.name for tensor in forward.kind.outputs}
        # The gradient of each input that has one, and the output of each gradient that comes.
        self.gradient_of = {tensor.derivative_of: tensor.name for tensor in backward.kind.outputs}
        self._given = [tensor for tensor in backward.kind.inputs if tensor.derivative_of in outputs]
        self._saved = [tensor.name for tensor in backward.kind.inputs if tensor not in self._given]
        autograd.register(forward.name, self.gradients, self.setup)
        if forward.formula is None:
            autograd.refuse_autograd(backward.name, _no_second(backward))
        else:
            autograd.register(backward.name, self._second_gradients, self._setup_second)

    @staticmethod
    def _save(ctx: Any, given: Given, names: list[str]) -> None:
        tensors = {name: _flat(given[name]) for name in names}
        ctx.save_for_backward(*(tensor for name in names for tensor in tensors[name]))
        ctx.counts = {name: len(tensors[name]) if isinstance(given[name], (list, tuple)) else
                      None if given[name] is None else -1 for name in names}  # fmt: skip
        ctx.set_materialize_grads(False)

    @staticmethod
    def _restore(ctx: Any) -> Given:
        tensors = iter(ctx.saved_tensors)
        return {
            name: None if count is None else next(tensors) if count < 0 else [next(tensors) for _ in range(count)]
            for name, count in ctx.counts.items()
        }

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = self.forward.bind(inputs)
        made = dict(zip((tensor.name for tensor in self.forward.made), _tuple(output)))
        given.update(made)
        for tensor in self.forward.made:
            if tensor.optional and made[tensor.name].dim() == 1 and not made[tensor.name].numel():
                given[tensor.name] = None  # returned() stands in for it
        # What only the backward pass reads comes without a gradient.
        has_gradient = {tensor.derivative_of for tensor in self._given}
        ctx.mark_non_differentiable(*(each for name, each in made.items() if name not in has_gradient))
        ctx.made = {name: (value.shape, value.dtype) for name, value in made.items()}
        self._save(ctx, given, self._saved)
        ctx.stated = {name: given[name] for name in (*self.forward.fields, "implementation")}

    def gradients(self, ctx: Any, *derivatives: Optional[Tensor]) -> tuple[Any, ...]:
        given = {**ctx.stated, **self._restore(ctx)}
        of_output = dict(zip((tensor.name for tensor in self.forward.made), derivatives))
        named = {tensor.name: of_output[tensor.derivative_of] for tensor in self._given}
        refuse_tangents(named.items())
        first = self.forward.first(given)[1]
        given.update((tensor.name, self._dense(tensor, named[tensor.name], ctx.made, first)) for tensor in self._given)
        needed = dict(zip(self.forward.names, ctx.needs_input_grad))
        for name, gradient in self.gradient_of.items():
            given[f"need_{gradient}"] = any(needed[name]) if isinstance(needed[name], (list, tuple)) else needed[name]
        arguments = [given[name] for name in self.backward.names]
        try:
            if self.forward.formula is None and transforming() and not torch.compiler.is_compiling():
                results = _TransformedGradients.apply(*arguments, self.backward)
            else:
                results = self.backward.handle(*arguments)
        except RuntimeError as error:
            raise_known(error, **named)
            raise
        found = dict(zip((tensor.name for tensor in self.backward.made), _tuple(results)))
        return tuple(self._gradient(found, name, each) for name, each in needed.items())

    @staticmethod
    def _dense(tensor: _calls.Tensor, value: Optional[Tensor], made: dict[str, Any], first: Tensor) -> Optional[Tensor]:
        """The gradient of an output as the kernels read it; None stands for zeros."""
        if value is None and not tensor.optional:
            shape, dtype = made[tensor.derivative_of]
            return first.new_zeros(shape, dtype=dtype)
        if value is not None and tensor.rows and value.stride(-1) != 1:
            # Such as the expanded gradient of a sum. contiguous() would leave one without elements as it is.
            return value.clone(memory_format=torch.contiguous_format)
        return value

    def _gradient(self, found: dict[str, Any], name: str, needed: Any) -> Any:
        value = found.get(self.gradient_of.get(name, ""))
        if isinstance(needed, (list, tuple)):
            return [value[i] if each and value is not None else None for i, each in enumerate(needed)]
        return value if needed else None

    def _setup_second(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = self.backward.bind(inputs)
        self._save(ctx, given, [tensor.name for tensor in self.backward.kind.inputs])
        ctx.stated = {name: given[name] for name in self.backward.fields}

    def _second_gradients(self, ctx: Any, *derivatives: Any) -> tuple[Any, ...]:
        """Gradients of NAME_backward, by the formula."""
        _log.dispatch(f"double backward of {self.forward.name} -> torch's operations")
        given = {**ctx.stated, **self._restore(ctx)}
        made = (tensor.name for tensor in self.backward.made)
        found = self.forward.formula.second(given, dict(zip(made, derivatives)))
        return tuple(found.get(name) for name, _ in zip(self.backward.names, ctx.needs_input_grad))


class _Transformed(torch.autograd.Function):
    """An operator under torch.func's transforms, which refuse registered autograd. Its derivatives follow its
    arguments, none of which is a list."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return arguments[-1].forward.handle(*arguments[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.derivatives = inputs[-1]
        inputs[-1].setup(ctx, inputs[:-1], output)

    @staticmethod
    def backward(ctx: Any, *derivatives: Any) -> Any:
        return (*ctx.derivatives.gradients(ctx, *derivatives), None)


class _TransformedGradients(torch.autograd.Function):
    """Gradients under torch.func's transforms, which ask for a graph of them that few go on to use."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return arguments[-1].handle(*arguments[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.backward_of = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *derivatives: Any) -> Any:
        raise NotImplementedError(_no_second(ctx.backward_of))


def _no_second(backward: Operator) -> str:
    name = backward.name.removesuffix("_backward")
    return f"{name}: its gradients have no derivatives of their own; without create_graph=True there is no need of any"


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


class Operation:
    """What a public function of an operation calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.make = self._register(Operator(_calls.CALLS[name]))
        self._packed = Packed.of(self.make)
        self.write = self._register(Operator(_calls.CALLS[name], into=True))
        self.derivatives: Optional[Derivatives] = None
        if (backward := _calls.CALLS.get(f"{name}_backward")) is not None:
            self.derivatives = Derivatives(self.make, self._register(Operator(backward)))
        else:
            autograd.refuse_autograd(name)
        autograd.refuse_autograd(self.write.name)
        has = {} if self.derivatives is None else self.derivatives.gradient_of
        self._tensor_names = [tensor.name for tensor in self.make.kind.inputs]
        self._without_gradient = [tensor.name for tensor in self.make.kind.inputs if tensor.name not in has]

    @staticmethod
    def _register(operator: Operator) -> Operator:
        for key in ("CPU", "CUDA"):  # ROCm's builds of torch call their GPU CUDA too
            if operators.is_left_to_python(operator.name, key):
                LIBRARY.impl(operator.name, operator.kernel, key)
        torch.library.register_fake(f"tilewise::{operator.name}", operator.fake, lib=LIBRARY)
        autocast.register(operator)
        return operator

    def __call__(self, given: Given, out: Given, forward_only: Sequence[str] = ()) -> tuple[Any, ...]:
        """The outputs in the schema's order.

        given: Inputs, fields, choices and implementation by name. out: Outputs that there are, or None. forward_only:
        Those of given that gradients would need and the backward call does not take.
        """
        traced = torch.compiler.is_compiling()
        if not traced and not forward_only and (made := self.run_plain(given, out)) is not None:
            return made
        into = any(value is not None for value in out.values())
        operator = self.write if into else self.make
        values = {**given, **out} if into else given
        tensors = [each for tensor in operator.tensors for each in _listed(values.get(tensor.name))]
        if not all(isinstance(tensor, Tensor) for tensor in tensors) or any(
            values[name] is None for name in operator.required
        ):
            self._refuse_others(operator, values)
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if wanted:
            for name, tensor in _all_named(values, self._without_gradient):
                refuse_gradient(name, tensor)
            if forward_only:
                raise NotImplementedError(
                    f"{forward_only[0]}: has no backward pass; call it on what requires no gradient"
                )
        if not into and operator.formula is not None and (transforming() or has_tangents(tensors)):
            _log.dispatch(f"{self.name} under a transform or with dual tensors -> torch's operations")
            outputs: tuple[Any, ...] = operator.formula.differentiable(given)
            return outputs
        refuse_tangents(_all_named(values, operator.names))
        if into and wanted:
            raise ValueError(f"{operator.given[0].name}: cannot be given with inputs that require gradients")
        arguments = [
            _listed(values.get(name)) if name in operator.lists else values.get(name) for name in operator.names
        ]
        try:
            if wanted and self.derivatives is not None and transforming() and not traced:
                made = _Transformed.apply(*arguments, self.derivatives)
            elif wanted or traced or transforming():
                made = operator.handle(*arguments)
            else:
                with autograd.below_autograd():
                    made = operator.handle(*arguments)
        except RuntimeError as error:
            raise_known(error, **dict(_all_named(values, (tensor.name for tensor in operator.tensors))))
            raise
        results = dict(zip((tensor.name for tensor in operator.made), _tuple(made)))
        return tuple(results.get(tensor.name, out.get(tensor.name)) for tensor in operator.kind.outputs)

    def run_plain(self, given: Given, out: Given) -> Optional[tuple[Any, ...]]:
        """The outputs of an eager call that no gradient, transform or dual level looks at; None where it is another
        one, or one that is refused: the careful way says why."""
        if forward_ad._current_level >= 0 or transforming():
            return None
        for value in out.values():
            if value is not None:
                return None
        grad, get = torch.is_grad_enabled(), given.get
        for name in self._tensor_names:
            value = get(name)
            if value is not None and (not isinstance(value, Tensor) or (grad and value.requires_grad)):
                return None
        try:
            with autograd.below_autograd():
                made = self.make.handle(*[get(name) for name in self.make.names])
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            return None
        return made if isinstance(made, tuple) else (made,)

    def run_packed(self, inputs: Given, fields: Given) -> Optional[tuple[Any, ...]]:
        """run_plain() of inputs and all else by name; `fields` stays as it is."""
        if forward_ad._current_level >= 0 or transforming() or private.is_any_autocast_enabled():
            return None
        packed = self._packed
        arguments = None if packed is None else packed.arguments(inputs, fields)
        if packed is None or arguments is None:
            return None
        try:
            made = packed.handle(*arguments)
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            return None
        return made if isinstance(made, tuple) else (made,)

    @staticmethod
    def _refuse_others(operator: Operator, values: Given) -> None:
        """TypeError that names the first argument that is no tensor."""
        named = list(_all_named(values, (tensor.name for tensor in operator.tensors)))
        named += [(name, None) for name in operator.required if values[name] is None]
        for name, value in named:
            if not isinstance(value, Tensor):
                raise TypeError(f"{name}: must be a torch tensor like {named[0][0]} (got {type(value).__name__})")


def _listed(value: Any) -> Any:
    """A list of what may be one tensor or none; torch wants no tuple."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


OPERATIONS = {name: Operation(name) for name in _calls.CALLS if not name.endswith("_backward")}
