/* DLPack's tensors. A program that has DLPack's header speaks of one DLTensor everywhere, so that one counts; others
 * get the copy that Tilewise brings, which lies in a folder of its own and in nobody's way. */
#ifndef TILEWISE_DLPACK_H
#define TILEWISE_DLPACK_H

#ifdef __has_include
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define TILEWISE_DLPACK_OF_THE_PROGRAM
#endif
#endif

#ifndef TILEWISE_DLPACK_OF_THE_PROGRAM
#include "tilewise/third_party/dlpack/dlpack.h"
#endif

#endif /* TILEWISE_DLPACK_H */
