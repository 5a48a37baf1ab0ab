// Small results into memory of the host that the GPU can write to: mlxsparse/backend/mail.py looks there. CUDA alone: on
// Metal the host sees every array.
// a[A], b[B]: 32-bit words, A + B < 64; none: not written; low, high: where, as bytes of host memory; ticket: written last
// grid: one threadgroup of 64 threads
extern "C" __global__ void KERNEL_NAME(
    const unsigned int* a, const unsigned int* b, int* none, int low, int high, int ticket, int A, int B) {
  unsigned long long place = (unsigned long long)(unsigned int)high << 32 | (unsigned int)low;
  volatile unsigned int* mail = (volatile unsigned int*)place;
  int t = threadIdx.x;
  if (t < A) mail[1 + t] = a[t];
  if (t < B) mail[1 + A + t] = b[t];
  __threadfence_system();
  __syncthreads();
  if (t == 0) mail[0] = (unsigned int)ticket;
}
