import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelEoSStreamProcessor;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The process of the Parallel Consumer: it reads a topic once, as a new group, and prints one line of JSON. Arguments are
 * NAME=VALUE: brokers, topic, group, order (partition, key or unordered), workers, records, buffer (records that may wait;
 * 0 for the library's default), warmup (records handled before, by another group, until the compiler is warm) and span: true
 * when each handler sleeps and its times are to be printed.
 */
public final class ParallelPeer {
    private static final com.sun.management.OperatingSystemMXBean SYSTEM =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final Map<String, String> arguments;

    private ParallelPeer(Map<String, String> arguments) {
        this.arguments = arguments;
    }

    public static void main(String[] args) {
        Map<String, String> arguments = new HashMap<>();
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            arguments.put(parts[0], parts[1]);
        }
        endWithInput();
        int status = 0;
        try {
            ParallelPeer peer = new ParallelPeer(arguments);
            peer.warmUp();
            System.out.println(peer.measure());
            System.out.flush();
        } catch (Exception e) {
            e.printStackTrace();
            status = 1;
        }
        Runtime.getRuntime().halt(status); // the library's threads may be slow to end, and nothing depends on them any more
    }

    /** The process does not outlive the one that started it. */
    private static void endWithInput() {
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // nothing is expected
                }
            } catch (IOException e) {
                // means the same as the end
            }
            Runtime.getRuntime().halt(2);
        });
        watch.setDaemon(true);
        watch.start();
    }

    private int number(String name) {
        return Integer.parseInt(arguments.get(name));
    }

    private ParallelStreamProcessor<byte[], byte[]> start(String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments.get("brokers"));
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var options = ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(consumer)
                .ordering(ProcessingOrder.valueOf(arguments.get("order").toUpperCase()))
                .maxConcurrency(number("workers"));
        if (number("buffer") > 0) {
            options.messageBufferSize(number("buffer"));
        }
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options.build());
        processor.subscribe(List.of(arguments.get("topic")));
        return processor;
    }

    /** Waits until the records are handled, unless the library has given up. */
    private static void await(CountDownLatch done, ParallelStreamProcessor<byte[], byte[]> processor) throws Exception {
        var library = (ParallelEoSStreamProcessor<byte[], byte[]>) processor;
        while (!done.await(100, TimeUnit.MILLISECONDS)) {
            if (library.isClosedOrFailed()) {
                throw new IllegalStateException("it gave up", library.getFailureCause());
            }
        }
    }

    private void warmUp() throws Exception {
        int records = number("warmup");
        if (records == 0) {
            return;
        }
        AtomicLong handled = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        var processor = start(arguments.get("group") + "-warmup");
        processor.poll(context -> {
            if (handled.incrementAndGet() == records) {
                done.countDown();
            }
        });
        await(done, processor);
        processor.closeDontDrainFirst();
        System.gc();
    }

    private String measure() throws Exception {
        return Boolean.parseBoolean(arguments.get("span")) ? measureSpans() : measureRate();
    }

    /** How fast a handler that does nothing gets the records, and at what cost of the process, closing included. */
    private String measureRate() throws Exception {
        int records = number("records");
        double cpu = SYSTEM.getProcessCpuTime() / 1e9;
        long began = System.nanoTime();
        AtomicLong handled = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        var processor = start(arguments.get("group"));
        processor.poll(context -> {
            if (handled.incrementAndGet() == records) {
                done.countDown();
            }
        });
        await(done, processor);
        double seconds = (System.nanoTime() - began) / 1e9;
        processor.close();
        double spent = SYSTEM.getProcessCpuTime() / 1e9 - cpu;
        return String.format("{\"records\":%d,\"seconds\":%.4f,\"cpuSeconds\":%.4f}", handled.get(), seconds, spent);
    }

    /** When each record of the topic's only partition was handled. Times are nanoseconds since the handlers' first call. */
    private String measureSpans() throws Exception {
        int records = number("records");
        long[] starts = new long[records];
        long[] ends = new long[records];
        int[] keys = new int[records];
        AtomicLong handled = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        double cpu = SYSTEM.getProcessCpuTime() / 1e9;
        long committed;
        var processor = start(arguments.get("group"));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments.get("brokers")))) {
            committedOffset(admin); // connects
            processor.poll(context -> {
                ConsumerRecord<byte[], byte[]> record = context.getSingleConsumerRecord();
                int offset = (int) record.offset();
                starts[offset] = System.nanoTime();
                LockSupport.parkNanos(delay(offset));
                keys[offset] = Integer.parseInt(new String(record.key()));
                ends[offset] = System.nanoTime();
                if (handled.incrementAndGet() == records) {
                    done.countDown();
                }
            });
            await(done, processor);
            while (committedOffset(admin) < records) {
                Thread.sleep(5);
            }
            committed = System.nanoTime();
        }
        double spent = SYSTEM.getProcessCpuTime() / 1e9 - cpu;
        processor.close();
        long first = Long.MAX_VALUE;
        for (long start : starts) {
            first = Math.min(first, start);
        }
        StringBuilder out = new StringBuilder(records * 32);
        out.append(String.format("{\"records\":%d,\"cpuSeconds\":%.4f,\"committed\":%d", handled.get(), spent, committed - first));
        append(out, "starts", records, first, starts);
        append(out, "ends", records, first, ends);
        out.append(",\"keys\":[");
        for (int i = 0; i < records; i++) {
            out.append(i == 0 ? "" : ",").append(keys[i]);
        }
        return out.append("]}").toString();
    }

    private static void append(StringBuilder out, String name, int records, long first, long[] values) {
        out.append(",\"").append(name).append("\":[");
        for (int i = 0; i < records; i++) {
            out.append(i == 0 ? "" : ",").append(values[i] - first);
        }
        out.append(']');
    }

    private long committedOffset(Admin admin) throws Exception {
        var offsets = admin.listConsumerGroupOffsets(arguments.get("group")).partitionsToOffsetAndMetadata().get();
        OffsetAndMetadata offset = offsets.get(new TopicPartition(arguments.get("topic"), 0));
        return offset == null ? -1 : offset.offset();
    }

    /** How long the handler of an offset sleeps: the same as in the command. */
    private static long delay(long offset) {
        long x = (offset + 1) * 0x9E3779B97F4A7C15L;
        x = (x ^ (x >>> 30)) * 0xBF58476D1CE4E5B9L;
        x = (x ^ (x >>> 27)) * 0x94D049BB133111EBL;
        x ^= x >>> 31;
        return Long.remainderUnsigned(x, 5_000_001L);
    }
}
