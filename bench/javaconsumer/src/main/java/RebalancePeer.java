import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The process of the Java consumer's group: members come and go, and when each record was had by whom is printed as one line
 * of JSON. Arguments are NAME=VALUE: brokers, topic, group, partitions, heartbeat (ms), span (ms to wait after a step) and
 * steps: MEMBER:MS with commas between, a member with a minus leaves, and MS is waited before.
 */
public final class RebalancePeer {
    private static final int LONGEST_POLL = 100; // ms

    /** One record that a member had. */
    private static final class Delivery {
        final long at;
        final int member;
        final long number;

        Delivery(long at, int member, long number) {
            this.at = at;
            this.member = member;
            this.number = number;
        }
    }

    private final Map<String, String> arguments;
    private final long began = System.nanoTime();
    private final List<List<Delivery>> tracks = new ArrayList<>();
    private final CountDownLatch open;
    private final Map<Integer, KafkaConsumer<byte[], byte[]>> members = new HashMap<>();

    private RebalancePeer(Map<String, String> arguments) {
        this.arguments = arguments;
        int partitions = Integer.parseInt(arguments.get("partitions"));
        for (int i = 0; i < partitions; i++) {
            tracks.add(new ArrayList<>());
        }
        open = new CountDownLatch(partitions);
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
            System.out.println(new RebalancePeer(arguments).run());
            System.out.flush();
        } catch (Exception e) {
            e.printStackTrace();
            status = 1;
        }
        Runtime.getRuntime().halt(status); // who is left is given up
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

    private String run() throws Exception {
        join(1);
        open.await();
        List<Long> marks = new ArrayList<>();
        for (String step : arguments.get("steps").split(",")) {
            String[] parts = step.split(":");
            int member = Integer.parseInt(parts[0]);
            Thread.sleep(Long.parseLong(parts[1]));
            marks.add(System.nanoTime() - began);
            if (member < 0) {
                members.get(-member).wakeup();
            } else {
                join(member);
            }
            Thread.sleep(Long.parseLong(arguments.get("span")));
        }
        return answer(marks);
    }

    private void join(int member) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments.get("brokers"));
        properties.put("group.id", arguments.get("group"));
        properties.put("auto.offset.reset", "earliest");
        properties.put("heartbeat.interval.ms", arguments.get("heartbeat"));
        properties.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(arguments.get("topic")));
        members.put(member, consumer);
        Thread loop = new Thread(() -> poll(member, consumer));
        loop.setDaemon(true);
        loop.start();
    }

    private void poll(int member, KafkaConsumer<byte[], byte[]> consumer) {
        try {
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(LONGEST_POLL))) {
                    note(member, record);
                }
            }
        } catch (WakeupException e) {
            consumer.close();
        } catch (RuntimeException e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private void note(int member, ConsumerRecord<byte[], byte[]> record) {
        Delivery delivery = new Delivery(System.nanoTime() - began, member, number(record.value()));
        List<Delivery> track = tracks.get(record.partition());
        synchronized (tracks) {
            track.add(delivery);
            if (track.size() == 1) {
                open.countDown();
            }
        }
    }

    /** The number at the beginning of a record. */
    private static long number(byte[] value) {
        long number = 0;
        for (int i = 0; i < value.length && value[i] != ' '; i++) {
            number = number * 10 + value[i] - '0';
        }
        return number;
    }

    private String answer(List<Long> marks) {
        StringBuilder out = new StringBuilder("{\"marks\":").append(marks).append(",\"tracks\":[");
        synchronized (tracks) {
            String comma = "";
            for (List<Delivery> track : tracks) {
                List<Long> at = new ArrayList<>();
                List<Integer> member = new ArrayList<>();
                List<Long> number = new ArrayList<>();
                for (Delivery delivery : track) {
                    at.add(delivery.at);
                    member.add(delivery.member);
                    number.add(delivery.number);
                }
                out.append(comma).append("{\"at\":").append(at).append(",\"member\":").append(member);
                out.append(",\"number\":").append(number).append('}');
                comma = ",";
            }
        }
        return out.append("]}").toString();
    }
}
