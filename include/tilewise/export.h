/* TILEWISE_EXPORT marks the public interface: a shared library of Tilewise exports what bears it and nothing else,
 * since everything is compiled with hidden visibility. A test compares the library's symbols with these headers. */
#ifndef TILEWISE_EXPORT_H
#define TILEWISE_EXPORT_H

#if defined(__GNUC__)
#define TILEWISE_EXPORT __attribute__((visibility("default")))
#else
#define TILEWISE_EXPORT
#endif

#endif /* TILEWISE_EXPORT_H */
