module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x16xf32>, %arg1: tensor<1xi1>) -> (tensor<32x16xf32> {jax.result_info = "result"}) {
    return %arg0 : tensor<32x16xf32>
  }
}
