package delayq;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.temporal.TemporalAccessor;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;

/**
 * A Celery task as it waits in Redis: kombu's envelope around a message of Celery's task protocol 2.
 *
 * <pre>{@code
 * CeleryMessage message = CeleryMessage.of("shop.cancel_unpaid", 42).withCountdown(Duration.ofMinutes(30));
 * delayedQueue.offer(message.toJson("celery"), message.delayMillis(), TimeUnit.MILLISECONDS);
 * }</pre>
 *
 * Immutable. The format is described field by field in docs/redisson.md; its counterpart in Python is
 * examples/java/celery_message.py.
 */
public final class CeleryMessage {
    /** The values of kombu's transport option priority_steps, unless the Python side has set others. */
    static final int[] PRIORITY_STEPS = {0, 3, 6, 9};

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final DateTimeFormatter ISO = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSSxxx");

    private final String id;
    private final String task;
    private final List<?> args;
    private final Map<String, ?> kwargs;
    private final Instant eta;
    private final Instant expires;
    private final int priority;

    private CeleryMessage(String id, String task, List<?> args, Map<String, ?> kwargs, Instant eta, Instant expires,
            int priority) {
        this.id = Objects.requireNonNull(id, "id");
        this.task = Objects.requireNonNull(task, "task");
        this.args = Collections.unmodifiableList(new ArrayList<>(args)); // List.copyOf() refuses null, Python's None
        this.kwargs = Collections.unmodifiableMap(new LinkedHashMap<>(kwargs));
        this.eta = eta == null ? null : Instant.ofEpochMilli(eta.plusNanos(999_999).toEpochMilli());
        this.expires = expires;
        this.priority = priority;
    }

    /** A message for the task of that name, due now, with a random id. Arguments are what Jackson can write. */
    public static CeleryMessage of(String task, Object... args) {
        return new CeleryMessage(UUID.randomUUID().toString(), task, Arrays.asList(args), Map.of(), null, null, 0);
    }

    /** The task id: what Python's AsyncResult(id) takes. DelayQ.cancel(id) does not find what Java offered. */
    public CeleryMessage withId(String id) {
        return new CeleryMessage(id, task, args, kwargs, eta, expires, priority);
    }

    /** Keyword arguments. */
    public CeleryMessage withKwargs(Map<String, ?> kwargs) {
        return new CeleryMessage(id, task, args, kwargs, eta, expires, priority);
    }

    /** The task runs at that time, not before. Rounded up to milliseconds, the unit of due times. */
    public CeleryMessage withEta(Instant eta) {
        return new CeleryMessage(id, task, args, kwargs, eta, expires, priority);
    }

    /** The task runs so long after now. */
    public CeleryMessage withCountdown(Duration countdown) {
        return withEta(Instant.now().plus(countdown));
    }

    /** A worker that gets the message after that time does not run the task. */
    public CeleryMessage withExpires(Instant expires) {
        return new CeleryMessage(id, task, args, kwargs, eta, expires, priority);
    }

    /** 0 to 9; over Redis, 0 runs first. It decides the list, see {@link #listName(String)}. */
    public CeleryMessage withPriority(int priority) {
        if (priority < 0 || priority > 9) {
            throw new IllegalArgumentException("a priority is 0 to 9, not " + priority);
        }
        return new CeleryMessage(id, task, args, kwargs, eta, expires, priority);
    }

    public String id() {
        return id;
    }

    public String task() {
        return task;
    }

    /** Positional arguments; where the message was parsed, as Jackson reads them. */
    public List<?> args() {
        return args;
    }

    public Map<String, ?> kwargs() {
        return kwargs;
    }

    /** When the task is due; null if it has not been delayed. */
    public Instant eta() {
        return eta;
    }

    /** When the message expires, or null. */
    public Instant expires() {
        return expires;
    }

    public int priority() {
        return priority;
    }

    /** The delay to offer the message with: milliseconds until its eta, 0 if it is due. */
    public long delayMillis() {
        return eta == null ? 0 : Math.max(0, eta.toEpochMilli() - System.currentTimeMillis());
    }

    /**
     * The Redis list of a Celery queue for this message's priority: kombu keeps one list a priority step, "celery" for
     * priorities 0 to 2, "celery\x06\x163" for 3 to 5, and so on. Give RQueue and RDelayedQueue this name, with the
     * Python side's global_keyprefix in front if it has one.
     */
    public String listName(String queue) {
        int step = 0;
        for (int candidate : PRIORITY_STEPS) {
            if (candidate <= priority) {
                step = candidate;
            }
        }
        return step == 0 ? queue : queue + "\u0006\u0016" + step;
    }

    /**
     * The same on Redis Cluster, where all lists of a queue are in its hash slot: "{celery}\x06\x163" for priorities 3 to
     * 5. `keyprefix` is the Python side's global_keyprefix, or empty; the name includes it.
     */
    public String clusterListName(String keyprefix, String queue) {
        String name = keyprefix + queue;
        String suffix = listName("");
        if (suffix.isEmpty() || hasHashTag(name)) {
            return name + suffix;
        }
        return keyprefix + "{" + name + "}" + suffix;
    }

    /** Whether only a part of the name decides about its hash slot: what is between the first braces. */
    private static boolean hasHashTag(String name) {
        int open = name.indexOf('{');
        return open >= 0 && name.indexOf('}', open) > open + 1;
    }

    /** The message as kombu stores it; `queue` is the Celery queue, without a priority. */
    public String toJson(String queue) {
        ArrayNode body = JSON.createArrayNode();
        body.add(JSON.valueToTree(args));
        body.add(JSON.valueToTree(kwargs));
        ObjectNode embed = body.addObject();
        for (String name : List.of("callbacks", "errbacks", "chain", "chord")) {
            embed.putNull(name);
        }

        ObjectNode message = JSON.createObjectNode();
        message.put("body", Base64.getEncoder().encodeToString(body.toString().getBytes(StandardCharsets.UTF_8)));
        message.put("content-encoding", "utf-8");
        message.put("content-type", "application/json");

        ObjectNode headers = message.putObject("headers");
        headers.put("lang", "py");
        headers.put("task", task);
        headers.put("id", id);
        headers.put("root_id", id);
        headers.putNull("parent_id");
        headers.putNull("group");
        headers.put("eta", isoformat(eta));
        headers.put("expires", isoformat(expires));
        headers.put("retries", 0);
        headers.putArray("timelimit").addNull().addNull();
        headers.put("argsrepr", JSON.valueToTree(args).toString());
        headers.put("kwargsrepr", JSON.valueToTree(kwargs).toString());
        headers.put("origin", "java");

        ObjectNode properties = message.putObject("properties");
        properties.put("correlation_id", id);
        properties.put("reply_to", "");
        properties.put("delivery_mode", 2);
        properties.put("delivery_tag", UUID.randomUUID().toString());
        properties.put("body_encoding", "base64");
        properties.put("priority", priority);
        properties.putObject("delivery_info").put("exchange", "").put("routing_key", queue);
        if (eta != null) {
            properties.put("delayq_due", eta.toEpochMilli());
        }
        return message.toString();
    }

    /**
     * Reads what Celery stored.
     *
     * @throws IllegalArgumentException the text is no task message of protocol 2 with a JSON body
     */
    public static CeleryMessage parse(String text) {
        try {
            JsonNode message = JSON.readTree(text);
            JsonNode headers = message.path("headers");
            JsonNode properties = message.path("properties");
            if (!headers.hasNonNull("id") || !headers.hasNonNull("task")
                    || !"application/json".equals(message.path("content-type").asText())) {
                throw new IllegalArgumentException("no Celery task with a JSON body");
            }
            byte[] bytes = message.path("body").asText().getBytes(StandardCharsets.UTF_8);
            if ("base64".equals(properties.path("body_encoding").asText())) {
                bytes = Base64.getDecoder().decode(bytes);
            }
            JsonNode body = JSON.readTree(bytes);
            return new CeleryMessage(
                    headers.get("id").asText(),
                    headers.get("task").asText(),
                    Arrays.asList(JSON.treeToValue(body.path(0), Object[].class)),
                    JSON.treeToValue(body.path(1), Map.class),
                    instant(headers.path("eta")),
                    instant(headers.path("expires")),
                    properties.path("priority").asInt());
        } catch (IOException error) {
            throw new IllegalArgumentException("no Celery task: " + error.getMessage(), error);
        }
    }

    private static String isoformat(Instant time) {
        return time == null ? null : ISO.format(time.atOffset(ZoneOffset.UTC));
    }

    /** A time without an offset is in UTC, as for Celery. */
    private static Instant instant(JsonNode time) {
        if (!time.isTextual()) {
            return null;
        }
        TemporalAccessor parsed = DateTimeFormatter.ISO_DATE_TIME.parseBest(
                time.asText(), OffsetDateTime::from, LocalDateTime::from);
        return parsed instanceof LocalDateTime
                ? ((LocalDateTime) parsed).toInstant(ZoneOffset.UTC)
                : Instant.from(parsed);
    }
}
