// What a function of scores captures, walked through at every call: in C++, since each part costs Python a tenth of a
// microsecond and more.
#include <nanobind/nanobind.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "bindings.hpp"

namespace tilewise::python {

namespace nb = nanobind;

namespace {

constexpr Py_ssize_t kMostParts = 256;  // of one function: functions that lead to each other have no end

/// A new reference, or a thrown Python error.
nb::object owned(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}
bool is_in(PyObject* set, PyObject* value) {
  const int found = PySet_Contains(set, value);
  if (found < 0) throw nb::python_error();
  return found == 1;
}

/// What tilewise._captured knows, in the order of its tuple: no object of Python's outlives a call here.
struct Facts {
  PyObject* values;        ///< types of which every value is a part
  PyObject* tensors;       ///< types of tensors, of which kind, dtype, shape and device are parts
  PyObject* modules;       ///< modules that are parts
  PyObject* builtins;      ///< names that are no globals
  PyObject* function;      ///< the type of Python's functions
  PyObject* codes;         ///< dict: of code by its address itself, and which globals it reads, or None
  PyObject* look_through;  ///< makes an entry of codes
  PyObject* rarer;         ///< of any other value a part and values to walk through, or None
  PyObject *dtype, *shape, *device, *code, *dict, *closure, *contents, *globals, *defaults, *named_defaults;
};
using FactsOfTuple = std::array<PyObject*, sizeof(Facts) / sizeof(PyObject*)>;

Facts facts_of(const nb::tuple& given) {
  FactsOfTuple facts{};
  if (nb::len(given) != facts.size()) throw nb::type_error("facts: must be those of tilewise._captured");
  for (std::size_t i = 0; i < facts.size(); ++i) facts[i] = PyTuple_GetItem(given.ptr(), static_cast<Py_ssize_t>(i));
  return std::bit_cast<Facts>(facts);
}

class Walk {
 public:
  explicit Walk(const Facts& facts) : facts_(facts) {}

  nb::list key, tensors, codes;

  void part(PyObject* value) {
    if (PyList_Append(key.ptr(), value) != 0) throw nb::python_error();
  }
  void number(std::int64_t value) { part(owned(PyLong_FromLongLong(value)).ptr()); }

  /// False: it has met what is not known to stay the same.
  bool add(PyObject* value) {
    if (PyList_Size(key.ptr()) > kMostParts) return false;
    auto* const kind = reinterpret_cast<PyObject*>(Py_TYPE(value));
    if (kind == facts_.function) return add_function(value);
    if (is_in(facts_.values, kind)) {
      part(kind);
      part(value);
      return true;
    }
    if (kind == reinterpret_cast<PyObject*>(&PyFloat_Type)) {
      part(kind);
      number(std::bit_cast<std::int64_t>(PyFloat_AsDouble(value)));  // tells 0.0 from -0.0
      return true;
    }
    if (kind == reinterpret_cast<PyObject*>(&PyModule_Type)) {
      part(value);
      return is_in(facts_.modules, value);
    }
    if (is_in(facts_.tensors, kind)) {
      part(kind);
      for (PyObject* const name : {facts_.dtype, facts_.shape, facts_.device})
        part(owned(PyObject_GetAttr(value, name)).ptr());
      tensors.append(nb::handle(value));
      return true;
    }
    if (kind == reinterpret_cast<PyObject*>(&PyTuple_Type) || kind == reinterpret_cast<PyObject*>(&PyList_Type))
      return add_all(kind, owned(PySequence_Tuple(value)).ptr());
    return add_rarer(kind, value);
  }

  /// Which of several tensors are the same one.
  void add_places() {
    const auto at = [this](Py_ssize_t place) { return PyList_GetItem(tensors.ptr(), place); };
    const Py_ssize_t count = PyList_Size(tensors.ptr());
    for (Py_ssize_t i = 0; count > 1 && i < count; ++i) {
      Py_ssize_t first = 0;
      while (at(first) != at(i)) ++first;
      number(first);
    }
  }

 private:
  bool add_all(PyObject* kind, PyObject* values) {
    const Py_ssize_t count = PyTuple_Size(values);
    if (count > kMostParts) return false;
    part(kind);
    number(count);
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!add(PyTuple_GetItem(values, i))) return false;
    return true;
  }

  bool add_rarer(PyObject* kind, PyObject* value) {
    const nb::object found = nb::handle(facts_.rarer)(nb::handle(value));
    if (found.is_none()) return false;
    part(nb::object(found[0]).ptr());
    return add_all(kind, nb::object(found[1]).ptr());
  }

  bool add_function(PyObject* function) {
    const nb::object code = owned(PyObject_GetAttr(function, facts_.code));
    const nb::object address = owned(PyLong_FromVoidPtr(code.ptr()));
    PyObject* known = PyDict_GetItemWithError(facts_.codes, address.ptr());
    const nb::object looked = known != nullptr ? nb::borrow(known) : nb::handle(facts_.look_through)(code);
    const nb::object names = looked[1];
    if (names.is_none() || PyDict_Size(owned(PyObject_GetAttr(function, facts_.dict)).ptr()) != 0) return false;
    codes.append(code);
    part(facts_.function);
    part(address.ptr());
    if (!add_cells(function) || !add_globals(function, names.ptr())) return false;
    if (!add(owned(PyObject_GetAttr(function, facts_.defaults)).ptr())) return false;
    const nb::object named = owned(PyObject_GetAttr(function, facts_.named_defaults));
    return add(named.is_none() ? named.ptr() : nb::tuple(named.attr("items")()).ptr());
  }

  bool add_cells(PyObject* function) {
    const nb::object cells = owned(PyObject_GetAttr(function, facts_.closure));
    for (Py_ssize_t i = 0; !cells.is_none() && i < PyTuple_Size(cells.ptr()); ++i) {
      PyObject* const content = PyObject_GetAttr(PyTuple_GetItem(cells.ptr(), i), facts_.contents);
      if (content == nullptr) PyErr_Clear();  // nothing is in it yet
      if (content == nullptr || !add(nb::steal(content).ptr())) return false;
    }
    return true;
  }

  bool add_globals(PyObject* function, PyObject* names) {
    const Py_ssize_t count = PyTuple_Size(names);
    if (count == 0) return true;
    const nb::object owner = owned(PyObject_GetAttr(function, facts_.globals));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const name = PyTuple_GetItem(names, i);
      if (PyObject* const value = PyDict_GetItemWithError(owner.ptr(), name)) {
        if (!add(nb::borrow(value).ptr())) return false;
      } else {
        part(name);
        if (!is_in(facts_.builtins, name)) return false;
      }
    }
    return true;
  }

  const Facts& facts_;
};

/// (key, tensors, codes), or None where the function can see what is not known to stay the same.
nb::object captured_parts(nb::handle function, nb::handle options, const nb::tuple& given) {
  const Facts facts = facts_of(given);
  Walk walk(facts);
  walk.part(options.ptr());
  if (!walk.add(function.ptr())) return nb::none();
  walk.add_places();
  return nb::make_tuple(owned(PyList_AsTuple(walk.key.ptr())), walk.tensors, walk.codes);
}

}  // namespace

void bind_captured(nb::module_& module) {
  module.def(
      "captured_parts", &captured_parts, nb::arg("function"), nb::arg("options"), nb::arg("facts"),
      nb::sig("def captured_parts(function: object, options: object, facts: tuple) -> object"),
      "What tracing a function could see, as a key of all but the tensors, these, and the code that the key has\n"
      "by its address; or None. facts: those of tilewise._captured.");
}

}  // namespace tilewise::python
