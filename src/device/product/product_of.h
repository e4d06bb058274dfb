// What multiplies as a config says.
#pragma once

#include "device/product/direct_bytes.h"
#include "device/product/direct_fours.h"
#include "device/product/direct_product.h"
#include "device/product/direct_scaled.h"
#include "device/product/stream_product.h"

namespace tilewise::device {

template <class Ops, ProductConfig C>
using DirectProductOf = Choose<C.scales_products(), DirectScaled<Ops, C>,
                               Choose<C.in_bytes(), DirectBytes<Ops, C>,
                                      Choose<C.b.type == kProductE2m1, DirectFours<Ops, C>, DirectProduct<Ops, C>>>>;

template <class Ops, ProductConfig C>
using ProductOf = Choose<C.right == kRightStreamed, StreamProduct<Ops, C>,
                         Choose<C.right != kRightDirect, Product<Ops, C>, DirectProductOf<Ops, C>>>;

}  // namespace tilewise::device
